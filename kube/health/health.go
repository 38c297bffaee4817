// Package health knows whether an agent works: its loops go on, the calls that it answers end, and
// who calls it knows it. It answers probes and Prometheus.
package health

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
)

// patience is how long a pass of a loop or a call from the kubelet may take. What takes longer is
// taken to hang: the kubelet itself gives a call 45 seconds.
const patience = 2 * time.Minute

// bounds are the upper bounds of the durations' histogram in seconds, those of the kubelet's own.
var bounds = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 15, 25, 45}

// State is what an agent knows of itself. It is safe for concurrent use.
type State struct {
	Now   func() time.Time
	Ready func() error // why the kubelet does not use this agent; nil: it does
	// Metric is the name of the durations' histogram, Driver the value of its label driver_name.
	Metric, Driver string
	// Failed reports whether an answer without an error says that the call failed.
	Failed func(answer any) bool
	// Code returns the code of the refusal that an error of a call is; "": it is none.
	Code func(error) string
	// Codes are counted from zero: Prometheus' increase does not see the first of a new series.
	Codes []string

	mu    sync.Mutex
	loops map[string]*loop
	calls map[*time.Time]string // that have begun and not ended
	took  map[operation]*histogram

	refused map[string]int // calls, by the code of their refusal
}

type loop struct {
	interval time.Duration
	last     time.Time // the begin of a pass, or its end
	failing  bool
}

type operation struct {
	name   string
	failed bool
}

type histogram struct {
	counts []uint64 // by bounds; the last for longer ones
	sum    float64
}

// Pass notes that a pass of a loop begins. The function that it returns notes its end.
func (s *State) Pass(name string, interval time.Duration) (end func(error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.loops == nil {
		s.loops = map[string]*loop{}
	}
	l := s.loops[name]
	if l == nil {
		l = &loop{interval: interval}
		s.loops[name] = l
	}
	l.last = s.Now()
	return func(err error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		l.last, l.failing = s.Now(), err != nil && !errors.Is(err, context.Canceled)
	}
}

// Intercept measures the calls of the kubelet.
func (s *State) Intercept(ctx context.Context, request any, info *grpc.UnaryServerInfo,
	handle grpc.UnaryHandler) (any, error) {
	name := strings.TrimPrefix(info.FullMethod[strings.LastIndexByte(info.FullMethod, '/')+1:], "Node")
	end := s.begin(name)
	answer, err := handle(ctx, request)
	end(err != nil || s.Failed != nil && s.Failed(answer), err)
	return answer, err
}

// Call notes that a call begins. The function that it returns notes its end.
func (s *State) Call(name string) (end func(error)) {
	over := s.begin(name)
	return func(err error) { over(err != nil, err) }
}

func (s *State) begin(name string) (end func(failed bool, err error)) {
	began := s.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls == nil {
		s.calls, s.took = map[*time.Time]string{}, map[operation]*histogram{}
	}
	s.calls[&began] = name
	return func(failed bool, err error) { s.ended(&began, operation{name, failed}, err) }
}

func (s *State) ended(began *time.Time, o operation, err error) {
	seconds := s.Now().Sub(*began).Seconds()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.calls, began)
	h := s.took[o]
	if h == nil {
		h = &histogram{counts: make([]uint64, len(bounds)+1)}
		s.took[o] = h
	}
	i, _ := slices.BinarySearch(bounds, seconds)
	h.counts[i]++
	h.sum += seconds
	if err != nil && s.Code != nil && s.Code(err) != "" {
		if s.refused == nil {
			s.refused = map[string]int{}
		}
		s.refused[s.Code(err)]++
	}
}

// Alive returns what hangs.
func (s *State) Alive() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, hang := s.Now(), []string{}
	for name, l := range s.loops {
		if late := now.Sub(l.last); late > l.interval+patience {
			hang = append(hang, fmt.Sprintf("%s has not gone on for %s", name, late.Round(time.Second)))
		}
	}
	for began, name := range s.calls {
		if late := now.Sub(*began); late > patience {
			hang = append(hang, fmt.Sprintf("%s has not answered for %s", name, late.Round(time.Second)))
		}
	}
	if len(hang) == 0 {
		return nil
	}
	slices.Sort(hang)
	return errors.New(strings.Join(hang, "; "))
}

// Serve answers GET /healthz, /readyz and /metrics until the context ends.
func (s *State) Serve(ctx context.Context, l net.Listener) {
	mux := http.NewServeMux()
	probe := func(is func() error) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			if err := is(); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
			fmt.Fprintln(w, "ok")
		}
	}
	mux.HandleFunc("GET /healthz", probe(s.Alive))
	mux.HandleFunc("GET /readyz", probe(s.ready))
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		s.write(w)
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 10 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	_ = server.Serve(l)
}

func (s *State) ready() error {
	if s.Ready == nil {
		return nil
	}
	return s.Ready()
}

// write writes the metrics in Prometheus' text format.
func (s *State) write(w io.Writer) {
	ready := 0
	if s.ready() == nil {
		ready = 1
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(w, "# HELP gpuledger_agent_ready Whether this agent is ready: the kubelet knows it, the "+
		"scheduler has read the cluster.\n# TYPE gpuledger_agent_ready gauge\ngpuledger_agent_ready %d\n",
		ready)
	fmt.Fprint(w, "# HELP gpuledger_agent_loop_failing Whether the last pass of a loop failed.\n"+
		"# TYPE gpuledger_agent_loop_failing gauge\n")
	loops := slices.Sorted(maps.Keys(s.loops))
	for _, name := range loops {
		failing := 0
		if s.loops[name].failing {
			failing = 1
		}
		fmt.Fprintf(w, "gpuledger_agent_loop_failing{loop=%q} %d\n", name, failing)
	}
	fmt.Fprint(w, "# HELP gpuledger_agent_loop_timestamp_seconds When a loop last began or ended a pass.\n"+
		"# TYPE gpuledger_agent_loop_timestamp_seconds gauge\n")
	for _, name := range loops {
		fmt.Fprintf(w, "gpuledger_agent_loop_timestamp_seconds{loop=%q} %d\n", name,
			s.loops[name].last.Unix())
	}
	if s.Code != nil {
		fmt.Fprint(w, "# HELP gpuledger_agent_refusals_total Calls of the kubelet that the ledger refused.\n"+
			"# TYPE gpuledger_agent_refusals_total counter\n")
		codes := slices.AppendSeq(slices.Clone(s.Codes), maps.Keys(s.refused))
		slices.Sort(codes)
		for _, code := range slices.Compact(codes) {
			fmt.Fprintf(w, "gpuledger_agent_refusals_total{code=%q} %d\n", code, s.refused[code])
		}
	}
	s.writeDurations(w)
}

func (s *State) writeDurations(w io.Writer) {
	fmt.Fprintf(w, "# HELP %s How long the calls to this agent took.\n# TYPE %[1]s histogram\n", s.Metric)
	operations := slices.SortedFunc(maps.Keys(s.took), func(a, b operation) int {
		return strings.Compare(fmt.Sprint(a), fmt.Sprint(b))
	})
	for _, o := range operations {
		labels := fmt.Sprintf("driver_name=%q,operation_name=%q,is_error=\"%t\"", s.Driver, o.name, o.failed)
		h, sum := s.took[o], uint64(0)
		for i, count := range h.counts {
			sum += count
			le := "+Inf"
			if i < len(bounds) {
				le = fmt.Sprint(bounds[i])
			}
			fmt.Fprintf(w, "%s_bucket{%s,le=%q} %d\n", s.Metric, labels, le, sum)
		}
		fmt.Fprintf(w, "%s_sum{%s} %g\n%[1]s_count{%[2]s} %[4]d\n", s.Metric, labels, h.sum, sum)
	}
}
