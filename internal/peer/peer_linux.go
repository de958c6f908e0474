package peer

import "syscall"

func ask(fd int) (Peer, error) {
	cred, err := syscall.GetsockoptUcred(fd, syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	if err != nil {
		return nobody, err
	}
	return Peer{int(cred.Uid), int(cred.Pid)}, nil
}
