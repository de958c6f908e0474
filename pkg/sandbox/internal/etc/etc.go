// Package etc writes the files from which a program learns its user and the name of its machine.
//
// Content: /etc/passwd and /etc/group with the sandbox's user, /etc/hosts, /etc/hostname, and how names are resolved.
//
// Place in the flow. Backends put them into roots: alone into a root of host paths, and merged with the image's own
// files into an image's root.
//
// Lifecycle and concurrency. Pure functions.
//
// Limits. Only files of the traditional form are read; other lines are kept unchanged.
package etc

import (
	"bytes"
	"fmt"
	"strconv"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// MaxFile bounds an image's file that is merged. A larger one is kept unchanged.
const MaxFile = 1 << 20

// Passwd is a passwd file in which the sandbox's user has its uid, its name and its home. It replaces the image's users
// of that uid or that name: programs look up a home by uid, and HOME is the sandbox's.
func Passwd(image []byte, u sandbox.User) []byte {
	own := fmt.Sprintf("%s:x:%d:%d::%s:/bin/sh\n", sandbox.UserName, u.UID, u.GID, sandbox.HomeDir)
	if len(image) == 0 {
		return []byte("root:x:0:0:root:/:/usr/sbin/nologin\n" + own + "nobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n")
	}
	return merge(image, own, u.UID)
}

// Group is a group file in which the sandbox's group has its gid and its name.
func Group(image []byte, u sandbox.User) []byte {
	own := fmt.Sprintf("%s:x:%d:\n", sandbox.UserName, u.GID)
	if len(image) == 0 {
		return []byte("root:x:0:\n" + own + "nogroup:x:65534:\n")
	}
	return merge(image, own, u.GID)
}

// merge appends a line, and removes the lines with its name or its number.
func merge(image []byte, own string, id int) []byte {
	var kept bytes.Buffer
	number := []byte(strconv.Itoa(id))
	for line := range bytes.Lines(image) {
		fields := bytes.SplitN(bytes.TrimRight(line, "\n"), []byte(":"), 4)
		if len(fields) > 2 && (bytes.Equal(fields[2], number) || string(fields[0]) == sandbox.UserName) {
			continue
		}
		kept.Write(line)
	}
	if n := kept.Len(); n > 0 && kept.Bytes()[n-1] != '\n' {
		kept.WriteByte('\n')
	}
	kept.WriteString(own)
	return kept.Bytes()
}

// Hosts is a hosts file for a machine of that name.
func Hosts(hostname string) string {
	return "127.0.0.1\tlocalhost\n::1\tlocalhost\n127.0.0.1\t" + hostname + "\n"
}

// Resolver is a resolv.conf for every sandbox. Its name server has an address of RFC 5737 (network.Resolver), where the network of a sandbox
// with rules answers. A sandbox without a network has no route there: a program that resolves a name fails at once, as on a machine that is
// offline, and the kernel counts the attempt. Without a name server in the file, programs would ask the loopback, where there may be one.
const Resolver = "# Only the network of this sandbox, if it has one, answers at this address.\nnameserver 192.0.2.1\n"

// Switch is an nsswitch.conf: names are looked up in the files of this package and, hosts, at the name server.
const Switch = "passwd: files\ngroup: files\nhosts: files dns\n"
