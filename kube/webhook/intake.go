package webhook

import (
	"io"
	"net/http"
	"sync"
	"time"
)

// The bounds of what callers take of the process. Any program that reaches the webhook is one.
const (
	maxReview = 4 << 20 // the API server takes no object of more than 3 MiB
	maxSmall  = 64 << 10

	smallAtOnce = 256
	largeAtOnce = 4

	// maxParts bounds the commas between the elements of a review's lists and objects. A pod has
	// room for 4 MiB of the shortest containers, which would be 400 MB in memory.
	maxParts = 1 << 15
)

// intake takes reviews: small ones and large ones by themselves, because most are small.
type intake struct {
	small, large lane
	deciding     sync.Mutex // one review is decided at once, as that takes much memory and no time
}

func newIntake() *intake {
	return &intake{small: newLane(maxSmall, smallAtOnce), large: newLane(maxReview, largeAtOnce)}
}

// take reads a review and calls decide with it. It returns http.StatusOK, or why it did not call
// decide.
func (in *intake) take(w http.ResponseWriter, r *http.Request, decide func([]byte)) (status int) {
	l := &in.small
	switch {
	case r.ContentLength > maxReview:
		return http.StatusRequestEntityTooLarge
	case r.ContentLength < 0 || r.ContentLength > maxSmall:
		l = &in.large
	}
	text, err := l.read(w, r)
	switch {
	case err != nil:
		return http.StatusBadRequest
	case commas(text) > maxParts:
		return http.StatusRequestEntityTooLarge
	}
	select {
	case l.waiting <- struct{}{}:
		defer func() { <-l.waiting }()
	default:
		return http.StatusServiceUnavailable
	}
	in.deciding.Lock()
	defer in.deciding.Unlock()
	decide(text)
	return http.StatusOK
}

// commas counts the commas of a text in JSON that are not in strings.
func commas(text []byte) (n int) {
	inString := false
	for i := 0; i < len(text); i++ {
		switch {
		case text[i] == '"':
			inString = !inString
		case inString && text[i] == '\\':
			i++
		case !inString && text[i] == ',':
			n++
		}
	}
	return n
}

// lane are the reviews of a size that are being read, and those that have been read and wait.
type lane struct {
	size    int64 // of one, at most
	waiting chan struct{}

	mu     sync.Mutex
	newest []*reading // a ring
	next   int
}

func newLane(size int64, atOnce int) lane {
	return lane{size: size, waiting: make(chan struct{}, atOnce), newest: make([]*reading, atOnce)}
}

// read reads a review. The API server sends one at once, and others can send theirs slowly. So if
// too many are being read, the oldest one is ended, and no new one has to wait.
func (l *lane) read(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	own := &reading{from: http.NewResponseController(w)}
	l.mu.Lock()
	oldest := l.newest[l.next]
	l.newest[l.next], l.next = own, (l.next+1)%len(l.newest)
	l.mu.Unlock()
	oldest.end()
	defer own.done()
	return io.ReadAll(http.MaxBytesReader(w, r.Body, l.size))
}

// reading is a review that is being read.
type reading struct {
	mu   sync.Mutex
	from *http.ResponseController // nil: it has been read
}

func (r *reading) end() {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.from != nil {
		_ = r.from.SetReadDeadline(time.Unix(1, 0))
	}
}

func (r *reading) done() {
	r.mu.Lock()
	r.from = nil
	r.mu.Unlock()
}
