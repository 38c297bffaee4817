package health

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// Socket is the abstract socket of an agent in its network namespace. It needs no file, no network
// and no port, so a probe works before and without the cluster's network.
func Socket(agent string) string { return "@gpuledger-" + agent }

// Probe asks the agent in this network namespace: what is "healthz" or "readyz".
func Probe(ctx context.Context, agent, what string) error {
	client := http.Client{Timeout: 4 * time.Second, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", Socket(agent))
		}}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent/"+what, nil)
	if err != nil {
		return err
	}
	answer, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("the agent does not answer: %w", err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 4096))
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s", strings.TrimSpace(string(text)))
	}
	return err
}
