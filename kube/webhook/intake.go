package webhook

import (
	"io"
	"net/http"
	"slices"
	"sync"
	"time"
)

// The bounds of what callers take of the process. Any program that reaches the webhook is one.
const (
	maxReview = 4 << 20 // the API server takes no object of more than 3 MiB
	maxSmall  = 64 << 10

	// room is for the reviews of a lane together. Many pods with large reviews can be created at
	// once: those of a workflow may name it all.
	room = 32 << 20

	// maxParts bounds the commas between the elements of a review's lists and objects. A pod has
	// room for 4 MiB of the shortest containers, which would be 400 MB in memory.
	maxParts = 1 << 15
)

// intake takes reviews: small ones and large ones by themselves, because most are small.
type intake struct {
	small, large lane
	deciding     sync.Mutex // one review is decided at once, as that takes much memory and no time
}

// take reads a review and calls decide with it. It returns http.StatusOK, or why it did not call
// decide.
func (in *intake) take(w http.ResponseWriter, r *http.Request, decide func([]byte)) (status int) {
	l, size := &in.small, max(r.ContentLength, maxSmall)
	switch {
	case r.ContentLength > maxReview:
		return http.StatusRequestEntityTooLarge
	case r.ContentLength < 0:
		l, size = &in.large, maxReview
	case size > maxSmall:
		l = &in.large
	}
	own := l.enter(w, size)
	if own == nil {
		return http.StatusServiceUnavailable
	}
	defer l.leave(own)
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, size))
	l.hasRead(own)
	switch {
	case err != nil:
		return http.StatusBadRequest
	case commas(text) > maxParts:
		return http.StatusRequestEntityTooLarge
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

// lane are the reviews that are being read, and those that have been read and wait.
type lane struct {
	mu   sync.Mutex
	used int64
	all  []*reading // the oldest first
}

// reading is a review that is being read, or has been read.
type reading struct {
	size int64                    // at most
	from *http.ResponseController // nil: it has been read
}

// enter makes room for a review. The API server sends one at once, and others can send theirs
// slowly. So if too many are being read, the oldest ones are ended, and no new one has to wait. It
// returns nil if the room is full of those that have been read.
func (l *lane) enter(w http.ResponseWriter, size int64) *reading {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.used+size > room {
		i := slices.IndexFunc(l.all, func(r *reading) bool { return r.from != nil })
		if i < 0 {
			return nil
		}
		_ = l.all[i].from.SetReadDeadline(time.Unix(1, 0))
		l.remove(i)
	}
	own := &reading{size: size, from: http.NewResponseController(w)}
	l.all, l.used = append(l.all, own), l.used+size
	return own
}

func (l *lane) hasRead(own *reading) {
	l.mu.Lock()
	defer l.mu.Unlock()
	own.from = nil
}

func (l *lane) leave(own *reading) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.all, own); i >= 0 {
		l.remove(i)
	}
}

func (l *lane) remove(i int) {
	l.used -= l.all[i].size
	l.all = slices.Delete(l.all, i, i+1)
}
