package webhook

import (
	"bufio"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
)

// reviewOf returns a review of a pod with this container, in JSON.
func reviewOf(container string) string {
	return `{"request":{"uid":"1","namespace":"team","operation":"CREATE","resource":{"version":"v1",` +
		`"resource":"pods"},"object":{"spec":{"containers":[` + container + `]}}}}`
}

const aGPU = `{"name":"a","resources":{"limits":{"gpuledger.dev/gpu-memory":"4"}}}`

func serveReviews(t *testing.T) (h *httptest.Server, path string) {
	t.Helper()
	rules := Rules{Claims: true, Dialect: configuration(t, "resources.toml")}
	handler := Handler{Rules: rules, Log: slog.New(slog.DiscardHandler)}
	server := httptest.NewServer(handler.Mux(func() error { return nil }))
	t.Cleanup(server.Close)
	return server, MutatePath + "/" + hash(rules.Dialect)
}

// caller waits for the server's word where it asks whether to send its text.
var caller = &http.Client{Timeout: time.Minute,
	Transport: &http.Transport{ExpectContinueTimeout: time.Minute, DisableKeepAlives: true}}

func send(t *testing.T, server *httptest.Server, path, text string) (int, string) {
	t.Helper()
	request, err := http.NewRequest(http.MethodPost, server.URL+path, strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	if len(text) > maxReview {
		// It is refused unread, and half a second later the server closes the connection. Who
		// sends all the same may find that instead of the answer.
		request.Header.Set("Expect", "100-continue")
	}
	answer, err := caller.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	var said strings.Builder
	_, _ = bufio.NewReader(answer.Body).WriteTo(&said)
	return answer.StatusCode, said.String()
}

// What pods of others have of amounts and lists is no reason to refuse them.
func TestReviewsOfUnusualPods(t *testing.T) {
	server, path := serveReviews(t)
	memory := resource.MustParse("1333.333333333333Gi")
	for name, container := range map[string]string{
		"a part of a byte": strings.Replace(aGPU, `:"4"`, `:"4","memory":"`+memory.String()+`"`, 1),
		"a list in a text": strings.Replace(aGPU, `"a"`, `"a","args":["\"`+strings.Repeat("1,", 50_000)+`"]`, 1),
	} {
		if code, said := send(t, server, path, reviewOf(container)); code != http.StatusOK ||
			!strings.Contains(said, `"patch":`) {
			t.Errorf("%s: %d, %s", name, code, said)
		}
	}
}

// Callers that begin reviews and do not end them keep no other from its answer. The first of them
// are ended.
func TestCallersThatSendSlowly(t *testing.T) {
	server, path := serveReviews(t)
	for size, atOnce := range map[int]int{1000: room / maxSmall, 1 << 20: 32} {
		var first *bufio.Reader
		for range atOnce + 3 {
			slow, err := net.Dial("tcp", server.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer slow.Close()
			_ = slow.SetReadDeadline(time.Now().Add(time.Minute))
			fmt.Fprintf(slow, "POST %s HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n"+
				"Content-Length: %d\r\n\r\n{", path, size)
			if first == nil {
				first = bufio.NewReader(slow)
				if answer, err := first.ReadString('\n'); err != nil || !strings.Contains(answer, "100") {
					t.Fatalf("the first slow caller is not read: %q, %v", answer, err)
				}
				_, _ = first.ReadString('\n') // an empty line
			}
		}
		text := reviewOf(aGPU)
		text += strings.Repeat(" ", max(0, size-len(text)))
		if code, said := send(t, server, path, text); code != http.StatusOK ||
			!strings.Contains(said, `"patch":`) {
			t.Errorf("a review of %d bytes: %d, %s", len(text), code, said)
		}
		answer, err := first.ReadString('\n')
		if err != nil || !strings.Contains(answer, "400") {
			t.Errorf("%d bytes: the first slow caller: %q, %v", size, answer, err)
		}
	}
}

// reviewWith returns a review of a pod with this annotation and 64 containers, which all ask for
// another amount.
func reviewWith(annotation, value string) string {
	var containers []string
	for i := range 64 {
		containers = append(containers, strings.Replace(aGPU, `:"4"`, fmt.Sprintf(`:"%d"`, i+1), 1))
	}
	return strings.Replace(reviewOf(strings.Join(containers, ",")), `"object":{`,
		fmt.Sprintf(`"object":{"metadata":{"annotations":{%q:%q}},`, annotation, value), 1)
}

// Large pods that are created at once, as by a Job, are all answered.
func TestManyLargeReviewsAtOnce(t *testing.T) {
	server, path := serveReviews(t)
	text := reviewOf(aGPU) + strings.Repeat(" ", 200_000)
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			answer, err := http.Post(server.URL+path, "application/json", strings.NewReader(text))
			if err != nil {
				t.Error(err)
				return
			}
			_ = answer.Body.Close()
			if answer.StatusCode != http.StatusOK {
				t.Error(answer.Status)
			}
		})
	}
	all.Wait()
}

// What a review is made of cannot take much memory or time.
func TestReviewsThatCostMuch(t *testing.T) {
	server, path := serveReviews(t)
	const long = "too many characters"
	limits := func(amount string) string {
		return `{"name":"a","resources":{"limits":{"gpuledger.dev/gpu-memory":` + amount + `}}}`
	}
	for name, c := range map[string]struct {
		text, want string
		code       int
	}{
		"empty containers":   {reviewOf(strings.Repeat("null,", 800_000) + aGPU), "cannot read", 413},
		"a large one":        {reviewOf(aGPU) + strings.Repeat(" ", 5<<20), "cannot read", 413},
		"a long amount":      {reviewOf(limits(`"` + strings.Repeat("9", 1_000_000) + `"`)), long, 200},
		"digits and a power": {reviewOf(limits(`"1234567890123456789e99"`)), "no whole number", 200},
		"a large power":      {reviewOf(limits(`"1e2147483647"`)), long, 200},
		"a small power":      {reviewOf(limits(`"1e-2147483647"`)), long, 200},
		"a power of elsewhere": {reviewOf(aGPU[:len(aGPU)-1] + `,"env":[{"name":"x","valueFrom":` +
			`{"resourceFieldRef":{"divisor":"1234567890123456789012e9999999"}}}]}`), `"patch":`, 200},
		"a product that each template has": {reviewWith("gpuledger.dev/gpu-product",
			strings.Repeat("<", 2_000_000)), "longer names", 200},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		began := processorTime(t)
		code, said := send(t, server, path, c.text)
		runtime.ReadMemStats(&after)
		if code != c.code || !strings.Contains(said, c.want) {
			t.Errorf("%s: %d, %.200s", name, code, said)
		}
		took := processorTime(t) - began
		if used := after.TotalAlloc - before.TotalAlloc; used > 80<<20 || took > 10*time.Second {
			t.Errorf("%s took %d MiB in %s", name, used>>20, took)
		}
	}
}

// processorTime is what this process has had of the processors.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var now syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &now); err != nil {
		t.Fatal(err)
	}
	return time.Duration(now.Utime.Nano() + now.Stime.Nano())
}
