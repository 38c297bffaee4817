package users

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// Client asks gpuledgerd on its socket.
type Client struct{ Socket string }

// errGone says that the connection ended without an answer.
var errGone = errors.New("gpuledgerd has ended the connection")

// answerTime bounds all but waiting and a change, which waits for a slow driver (node.LimitTime).
const (
	answerTime = 30 * time.Second
	updateTime = time.Minute
)

// Look returns what the caller may see.
func (c Client) Look(ctx context.Context) (v NodeView, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	return v, c.document(ctx, http.MethodGet, ViewPath, nil, &v)
}

// Basis returns what a verdict about a container with these references is decided by.
func (c Client) Basis(ctx context.Context, references []string) (b Basis, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	text, err := json.Marshal(ExplainRequest{References: references})
	if err != nil {
		return b, fmt.Errorf("internal error: %w", err)
	}
	return b, c.document(ctx, http.MethodPost, ExplainPath, text, &b)
}

// document sends a request whose answer is one document.
func (c Client) document(ctx context.Context, method, path string, request []byte, into any) error {
	body, err := c.do(ctx, method, path, request)
	if err != nil {
		return err
	}
	defer body.Close()
	if err := json.NewDecoder(body).Decode(into); err != nil {
		return fmt.Errorf("cannot understand gpuledgerd: %w", err)
	}
	return nil
}

// Release releases a grant of the caller.
func (c Client) Release(ctx context.Context, id grant.ID) (grant.Grant, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	e, err := c.events(ctx, ReleasePath, ReleaseRequest{ID: id}, nil)
	return e.grant(), err
}

// Update changes a grant of the caller. It returns a sentence about the grant, too.
func (c Client) Update(ctx context.Context, change UpdateRequest) (grant.Grant, string, error) {
	ctx, cancel := context.WithTimeout(ctx, updateTime)
	defer cancel()
	e, err := c.events(ctx, UpdatePath, change, nil)
	return e.grant(), e.Sentence, err
}

// Grant asks for a grant, and waits as long as the request says. place is called with each place in
// the queue, and with 0 when the daemon is gone: the request is sent again then until its time is
// over, and for returnTime at least. It returns a sentence about the grant, too.
func (c Client) Grant(ctx context.Context, request GrantRequest, place func(place, of int)) (grant.Grant,
	string, error) {
	return c.wait(ctx, GrantPath, request, place)
}

// Run is Grant for this process and all that it will start. It is in the grant's cgroup then.
func (c Client) Run(ctx context.Context, request GrantRequest, place func(place, of int)) (grant.Grant,
	string, error) {
	return c.wait(ctx, RunPath, request, place)
}

// returnTime is how long a request whose answer was lost is sent again at least, also one that does
// not wait: the daemon may have entered a grant before it was restarted.
const returnTime = 10 * time.Second

func (c Client) wait(ctx context.Context, path string, request GrantRequest,
	place func(place, of int)) (grant.Grant, string, error) {
	end := request.Since.Add(request.Wait)
	var lost time.Time // when the daemon was gone; zero: it is there
	for {
		left := request
		left.Wait = max(time.Until(end), 0)
		if request.Wait == 0 {
			left.Wait = 0
		}
		try, cancel := context.WithTimeout(ctx, left.Wait+answerTime)
		e, err := c.events(try, path, left, func(n, of int) {
			lost = time.Time{}
			place(n, of)
		})
		cancel()
		var down *DownError
		gone := errors.Is(err, errGone) || errors.As(err, &down) && !lost.IsZero()
		if !gone || ctx.Err() != nil {
			return e.grant(), e.Sentence, err
		}
		now := time.Now()
		if lost.IsZero() {
			lost = now
			place(0, 0)
		}
		if !now.Before(end) && now.Sub(lost) >= returnTime {
			return grant.Grant{}, "", fmt.Errorf("%w; there may be a grant for the request all the same: "+
				"see `gpuledger grants`", err)
		}
		select {
		case <-ctx.Done():
			return grant.Grant{}, "", ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

func (e Event) grant() grant.Grant {
	if e.Grant == nil {
		return grant.Grant{}
	}
	return e.Grant.Grant()
}

// events sends a request and reads the answer's lines up to the last.
func (c Client) events(ctx context.Context, path string, request any,
	place func(place, of int)) (Event, error) {
	text, err := json.Marshal(request)
	if err != nil {
		return Event{}, fmt.Errorf("internal error: %w", err)
	}
	body, err := c.do(ctx, http.MethodPost, path, text)
	if err != nil {
		return Event{}, err
	}
	defer body.Close()
	for lines := json.NewDecoder(body); ; {
		var e Event
		switch err := lines.Decode(&e); { // an answer that has come counts, also after an interruption
		case err == nil && e.Error != nil:
			return Event{}, e.Error.Err()
		case err == nil && e.Grant != nil:
			return e, nil
		case ctx.Err() != nil:
			return Event{}, ctx.Err()
		case err != nil:
			return Event{}, errGone
		case place != nil:
			place(e.Place, e.Of)
		}
	}
}

// DownError says that no daemon serves users here.
type DownError struct {
	Socket string
	Why    error
}

func (e *DownError) Error() string {
	return fmt.Sprintf("cannot ask gpuledgerd on %s: %v; does gpuledgerd run? For users other than root its "+
		"configuration also needs [users] or [[quota]]", e.Socket, e.Why)
}

// lastAnswer is how long gpuledgerd may take to see that its caller has hung up.
const lastAnswer = 2 * time.Second

// hangUp tells gpuledgerd that the caller wants nothing more, and leaves it time for the answer
// that it may be sending.
func hangUp(conn net.Conn) {
	if c, is := conn.(*net.UnixConn); is {
		_ = c.CloseWrite()
	}
	time.AfterFunc(lastAnswer, func() { _ = conn.Close() })
}

// do sends a request. After the end of ctx the answer ends, with what gpuledgerd has sent before it
// noticed: a grant that it has sent off is its caller's.
func (c Client) do(ctx context.Context, method, path string, body []byte) (io.ReadCloser, error) {
	dial := func(context.Context, string, string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", c.Socket)
		if err != nil {
			var op *net.OpError
			if errors.As(err, &op) {
				err = op.Err
			}
			return nil, &DownError{c.Socket, err}
		}
		context.AfterFunc(ctx, func() { hangUp(conn) })
		return conn, nil
	}
	client := http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	r, err := http.NewRequestWithContext(context.WithoutCancel(ctx), method, "http://gpuledgerd"+path,
		bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("internal error: %w", err)
	}
	answer, err := client.Do(r)
	var down *DownError
	switch {
	case errors.As(err, &down):
		return nil, down
	case err != nil && ctx.Err() != nil:
		return nil, fmt.Errorf("gpuledgerd does not answer: %w", ctx.Err())
	case err != nil:
		return nil, errGone
	case answer.StatusCode == http.StatusOK:
		return answer.Body, nil
	}
	defer answer.Body.Close()
	var e Event
	if err := json.NewDecoder(io.LimitReader(answer.Body, MaxBody)).Decode(&e); err == nil && e.Error != nil {
		return nil, e.Error.Err()
	}
	return nil, fmt.Errorf("gpuledgerd answers %s: is it of another version than this program?",
		answer.Status)
}
