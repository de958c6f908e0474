package peer

import "syscall"

func readCredentials(fd int) (Peer, error) {
	cred, err := syscall.GetsockoptUcred(fd, syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	if err != nil {
		return unknown, err
	}
	return Peer{int(cred.Uid), int(cred.Pid)}, nil
}
