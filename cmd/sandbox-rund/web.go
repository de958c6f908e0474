package main

import (
	"github.com/sandbox-run/sandbox-run/pkg/client"
	"github.com/sandbox-run/sandbox-run/pkg/client/web"
)

// dialWeb makes the transport to a server with a web address.
func dialWeb(address, key, caFile string) (client.Transport, error) {
	t, err := web.New(address, web.Options{Key: key, CAFile: caFile})
	if err != nil {
		return nil, err // an untyped nil: a nil *Transport in an interface is not nil
	}
	return t, nil
}
