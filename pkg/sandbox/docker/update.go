package docker

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"

	"github.com/moby/moby/client"

	"github.com/sandbox-run/sandbox-run/pkg/sandbox"
)

// update changes the limits of a running container.
func (d *daemon) update(ctx context.Context, id string, want sandbox.Limits) error {
	r := resources(want)
	if d.podman {
		return d.updatePodman(ctx, id, want)
	}
	_, err := d.ContainerUpdate(ctx, id, client.ContainerUpdateOptions{Resources: &r})
	return err
}

// cpuPeriod is the period of CPU quotas, in microseconds.
const cpuPeriod = 100_000

// updatePodman does the same by Podman's own API: before version 5, Podman's Docker API has no such call.
func (d *daemon) updatePodman(ctx context.Context, id string, want sandbox.Limits) error {
	type limits map[string]any
	body, err := json.Marshal(limits{
		"memory": limits{"limit": want.Memory, "swap": want.Memory},
		"cpu":    limits{"quota": int64(want.CPUs * cpuPeriod), "period": cpuPeriod},
		"pids":   limits{"limit": want.Processes + reservedTasks},
	})
	if err != nil {
		return err
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) { return d.Dialer()(ctx) }
	transport := &http.Transport{DialContext: dial, DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://d/v4.0.0/libpod/containers/"+id+"/update", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(res.Body, 4<<10))
	if res.StatusCode >= 300 {
		return fmt.Errorf("podman: %s: %s", res.Status, bytes.TrimSpace(text))
	}
	return nil
}
