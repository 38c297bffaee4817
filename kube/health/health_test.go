package health

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
)

func TestALoopThatHangs(t *testing.T) {
	now := time.Unix(1000, 0)
	s := &State{Now: func() time.Time { return now }}
	end := s.Pass("slices", time.Second)
	now = now.Add(patience)
	if err := s.Alive(); err != nil {
		t.Errorf("a slow pass counts as one that hangs: %v", err)
	}
	now = now.Add(2 * time.Second)
	if err := s.Alive(); err == nil || err.Error() != "slices has not gone on for 2m2s" {
		t.Errorf("got %v", err)
	}
	end(errors.New("x"))
	if err := s.Alive(); err != nil {
		t.Errorf("it has gone on: %v", err)
	}
}

func TestACallThatHangs(t *testing.T) {
	now := time.Unix(1000, 0)
	s := &State{Now: func() time.Time { return now }}
	_, err := s.Intercept(t.Context(), nil,
		&grpc.UnaryServerInfo{FullMethod: "/v1.DRAPlugin/NodePrepareResources"},
		func(context.Context, any) (any, error) {
			now = now.Add(patience + time.Second)
			if err := s.Alive(); err == nil || err.Error() != "PrepareResources has not answered for 2m1s" {
				t.Errorf("got %v", err)
			}
			return nil, nil
		})
	if err != nil || s.Alive() != nil {
		t.Errorf("it has answered: %v, %v", err, s.Alive())
	}
}

// The probe asks over the agent's socket, and says what the agent says.
func TestAProbe(t *testing.T) {
	agent := "test-" + strings.ReplaceAll(t.Name(), "/", "-") + time.Now().Format("150405.000000")
	if err := Probe(t.Context(), agent, "healthz"); err == nil || !strings.HasPrefix(err.Error(),
		"the agent does not answer: ") {
		t.Errorf("without an agent: %v", err)
	}
	now := time.Unix(1000, 0)
	s := &State{Now: func() time.Time { return now }, Metric: "dra_operations_duration_seconds",
		Driver: "gpuledger.dev", Ready: func() error { return errors.New("the kubelet does not know it") },
		Failed: func(answer any) bool { return answer == "refused" }}
	l, err := net.Listen("unix", Socket(agent))
	if err != nil {
		t.Fatal(err)
	}
	go s.Serve(t.Context(), l)
	asked := func(what string) (err error) {
		for range 10 { // as the kubelet does: a machine may stand still longer than a probe waits
			if err = Probe(t.Context(), agent, what); !errors.Is(err, context.DeadlineExceeded) {
				break
			}
		}
		return err
	}
	if err := asked("healthz"); err != nil {
		t.Error(err)
	}
	if err := asked("readyz"); err == nil ||
		err.Error() != "the kubelet does not know it" {
		t.Errorf("got %v", err)
	}
}

func TestMetrics(t *testing.T) {
	now := time.Unix(1000, 0)
	s := &State{Now: func() time.Time { return now }, Metric: "dra_operations_duration_seconds",
		Driver: "gpuledger.dev", Failed: func(answer any) bool { return answer == "refused" },
		Code:  func(err error) string { return strings.TrimPrefix(err.Error(), "plain") },
		Codes: []string{"mode-conflict", "no-capacity"}}
	s.Pass("slices", time.Second)(errors.New("x"))
	for took, answer := range map[time.Duration]string{20 * time.Millisecond: "done",
		50 * time.Millisecond: "done",
		time.Minute:           "refused"} {
		_, _ = s.Intercept(t.Context(), nil,
			&grpc.UnaryServerInfo{FullMethod: "/v1.DRAPlugin/NodePrepareResources"},
			func(context.Context, any) (any, error) { now = now.Add(took); return answer, nil })
	}
	for _, err := range []string{"no-capacity", "plain", "no-capacity"} {
		_, _ = s.Intercept(t.Context(), nil,
			&grpc.UnaryServerInfo{FullMethod: "/v1beta1.DevicePlugin/Allocate"},
			func(context.Context, any) (any, error) { return nil, errors.New(err) })
	}
	var out strings.Builder
	s.write(&out)
	const begin = `dra_operations_duration_seconds_`
	const labels = `{driver_name="gpuledger.dev",operation_name="PrepareResources",is_error=`
	for _, want := range []string{"gpuledger_agent_ready 1\n",
		`gpuledger_agent_loop_failing{loop="slices"} 1`,
		"TYPE gpuledger_agent_refusals_total counter\n" +
			"gpuledger_agent_refusals_total{code=\"mode-conflict\"} 0\n" +
			"gpuledger_agent_refusals_total{code=\"no-capacity\"} 2\n# ",
		`gpuledger_agent_loop_timestamp_seconds{loop="slices"} 1000`,
		begin + `bucket` + labels + `"false",le="0.01"} 0`,
		`operation_name="PrepareResources",is_error="false",le="0.05"} 2`,
		`operation_name="PrepareResources",is_error="false",le="+Inf"} 2`,
		`operation_name="PrepareResources",is_error="true",le="45"} 0`,
		`operation_name="PrepareResources",is_error="true",le="+Inf"} 1`,
		begin + `sum` + labels + `"true"} 60`,
		begin + `count` + labels + `"false"} 2`,
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("there is no %s in\n%s", want, out.String())
		}
	}
}
