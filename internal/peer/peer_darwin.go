package peer

import "golang.org/x/sys/unix"

func ask(fd int) (Peer, error) {
	cred, err := unix.GetsockoptXucred(fd, unix.SOL_LOCAL, unix.LOCAL_PEERCRED)
	if err != nil {
		return nobody, err
	}
	return Peer{int(cred.Uid), -1}, nil
}
