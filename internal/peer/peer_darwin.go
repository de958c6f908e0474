package peer

import "golang.org/x/sys/unix"

func readCredentials(fd int) (Peer, error) {
	cred, err := unix.GetsockoptXucred(fd, unix.SOL_LOCAL, unix.LOCAL_PEERCRED)
	if err != nil {
		return unknown, err
	}
	return Peer{int(cred.Uid), -1}, nil
}
