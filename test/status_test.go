package test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/gpuledger/gpuledger/internal/gpu/simulated"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// shows is the configuration of a daemon that listens there.
func shows(listen string) string {
	return fmt.Sprintf("[daemon]\nlisten = %q\ninterval = \"10ms\"\n", listen)
}

// site is what a daemon shows.
type site struct {
	t      testing.TB
	client http.Client
	base   string
}

// siteOf finds a daemon that was configured to take any port.
func siteOf(t *testing.T, d *rig.Daemon) site {
	t.Helper()
	serving := regexp.MustCompile(`serving metrics and the status page" address="?([0-9.:]+)`)
	var found []string
	rig.Eventually(t, "it serves", func() bool {
		found = serving.FindStringSubmatch(d.Log())
		return found != nil
	})
	return site{t: t, base: "http://" + found[1]}
}

// socketOf sends requests through a unix socket.
func socketOf(t *testing.T, path string) site {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}, DisableKeepAlives: true}
	return site{t: t, client: http.Client{Transport: transport}, base: "http://gpuledger"}
}

func (s site) ask(method, path, host string) (*http.Response, string) {
	s.t.Helper()
	r, err := http.NewRequest(method, s.base+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	r.Host = host
	answer, err := s.client.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return answer, string(text)
}

func (s site) get(path string) string {
	s.t.Helper()
	answer, text := s.ask("GET", path, "")
	if answer.StatusCode != http.StatusOK {
		s.t.Fatalf("%s: %s %s", path, answer.Status, text)
	}
	return text
}

// values is the text at a path. From metrics it omits the help lines, which always have phrases
// such as "1 if all is well".
func (s site) values(path string) string {
	s.t.Helper()
	text := s.get(path)
	if path == "/metrics" {
		text = comments.ReplaceAllString(text, "")
	}
	return text
}

var comments = regexp.MustCompile(`(?m)^# .*\n`)

// eventually waits until every text is in the output.
func (s site) eventually(path string, wanted ...string) {
	s.t.Helper()
	last := ""
	defer func() {
		if s.t.Failed() {
			s.t.Logf("%s was at last:\n%s", path, last)
		}
	}()
	for _, want := range wanted {
		rig.Eventually(s.t, path+" shows "+want, func() bool {
			last = s.values(path)
			return strings.Contains(last, want)
		})
	}
}

const evil = "<script>alert(1)</script>"

func TestDaemonShowsTheNode(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{Engine: "containerd", Config: adopts + shows("127.0.0.1:0")})
	d := n.Daemon("--nri", "off")
	s := siteOf(t, d)
	s.eventually("/metrics", `gpuledger_refusals_total{code="visible-devices-all",mode="enforced"} 0`,
		`gpuledger_ledger_sound 1`, "gpuledger_audit_followed 1")
	g := n.Grant("--memory", "2GiB", "--gpu", "0", "--compute", "25")
	free := n.Grant("--memory", "1GiB", "--gpu", "0")
	starts(t, n.Bundle("used", with(g), rig.Light))
	adopted := starts(t, n.Bundle("adopted", inPod("train"), allocated("train", "1", "4GiB"), rig.Light))
	refused := n.Bundle("refused", rig.Identity("uid-x", "team", evil, "train"),
		rig.Env("NVIDIA_VISIBLE_DEVICES=all"), rig.Light)
	isRefused(t, refused.Create(), grant.VisibleDevicesAll)
	mine := n.Grants()
	uuid := [2]string{mine[0].GPUs[0].UUID}
	for _, listed := range mine {
		uuid[listed.GPUs[0].Index] = listed.GPUs[0].UUID
	}
	s.eventually("/metrics", `gpuledger_refusals_total{code="visible-devices-all",mode="enforced"} 1`,
		"gpuledger_admissions_total 2",
		`gpuledger_gpu_memory_granted_bytes{gpu="`+uuid[0]+`"} 3.221225472e+09`,
		`gpuledger_gpu_memory_granted_bytes{gpu="`+uuid[1]+`"} 4.294967296e+09`,
		`gpuledger_gpu_compute_granted_ratio{gpu="`+uuid[0]+`"} 0.25`, `container="train",gpu="`+uuid[1]+`"`,
		`namespace="team",pod="job-0"} 4.294967296e+09`,
		`gpuledger_grants{mode="limit",owner="bearer",state="bound",strength="none"} 1`,
		`gpuledger_grants{mode="limit",owner="pod",state="bound",strength="none"} 1`,
		`gpuledger_grants{mode="limit",owner="bearer",state="free",strength="none"} 1`,
		`gpuledger_inventory_usable 1`, `gpuledger_manager_failing{manager="reconcile"} 0`,
		`gpuledger_binding_info{container="",container_id="used",grant="`+string(g.ID)+
			`",life="alive",namespace="",pod=""} 1`)
	s.eventually("/", "2 GPUs", "team/job-0/train", string(free.ID), "visible-devices-all", "&lt;script&gt;")
	text, page := s.get("/metrics"), s.get("/")
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("promlint: %+v %v", problems, err)
	}
	for _, secret := range []string{g.Secret, free.Secret, grant.SecretHash(g.Secret), evil, n.Dir} {
		if strings.Contains(text+page, secret) {
			t.Errorf("%q is shown", secret)
		}
	}
	adopted.KillInit()
	rig.Eventually(t, "what is over is not shown", func() bool {
		return !strings.Contains(s.get("/metrics")+s.get("/"), "job-0")
	})
	if code := d.End(syscall.SIGTERM); code != 0 {
		t.Errorf("it ends with status %d", code)
	}
}

func TestDaemonIsOnlyRead(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{Config: shows("127.0.0.1:0")})
	s := siteOf(t, n.Daemon("--nri", "off"))
	for _, c := range []struct {
		method, path, host string
		want               int
	}{
		{"GET", "/", "", 200}, {"HEAD", "/", "", 200}, {"HEAD", "/metrics", "", 200},
		{"GET", "/metrics", "localhost:9836", 200}, {"GET", "/grants", "", 404},
		{"GET", "/debug/pprof/", "", 404},
		{"POST", "/", "", 405}, {"DELETE", "/metrics", "", 405}, {"GET", "/", "rebound.example:9836", 421},
		{"GET", "/metrics", "rebound.example", 421},
	} {
		answer, text := s.ask(c.method, c.path, c.host)
		if answer.StatusCode != c.want || c.want >= 400 && strings.Count(text, "\n") != 1 ||
			c.method == "HEAD" && text != "" {
			t.Errorf("%s %s of %q: %s %q, want %d", c.method, c.path, c.host, answer.Status, text, c.want)
		}
	}
	answer, _ := s.ask("GET", "/", "")
	if h := answer.Header; !strings.HasPrefix(h.Get("Content-Security-Policy"), "default-src 'none'; ") ||
		h.Get("X-Frame-Options") != "DENY" || h.Get("Content-Type") != "text/html; charset=utf-8" {
		t.Errorf("headers: %v", h)
	}
}

func TestDaemonListensAtItsAddress(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer taken.Close()
	n := rig.NewNode(t, rig.Setup{Config: shows(taken.Addr().String())})
	d := n.Daemon("--nri", "off")
	complaint := "cannot serve metrics and the status page on " + taken.Addr().String() +
		": address already in use"
	rig.Eventually(t, "that the address is taken is logged", func() bool {
		return strings.Contains(d.Log(), complaint)
	})
	must(t, taken.Close())
	s := site{t: t, base: "http://" + taken.Addr().String()}
	rig.Eventually(t, "it serves when the address is free", func() bool {
		return strings.Contains(d.Log(), "serving metrics")
	})
	s.get("/metrics")
	if got := strings.Count(d.Log(), complaint); got != 1 {
		t.Errorf("that the address is taken is logged %d times", got)
	}
	text, err := os.ReadFile(n.Config)
	must(t, err)
	write := func(listen string) {
		must(t, os.WriteFile(n.Config+".new", []byte(strings.Replace(string(text), taken.Addr().String(),
			listen, 1)), 0o600))
		must(t, os.Rename(n.Config+".new", n.Config))
	}
	// a socket's name has 107 bytes at most, and a temporary directory may have a long one
	short, err := os.MkdirTemp("/tmp", "s-")
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(short)) })
	path := short + "/status.sock"
	write("unix:" + path)
	rig.Eventually(t, "it has moved to a socket", func() bool { _, err := os.Stat(path); return err == nil })
	socketOf(t, path).eventually("/metrics", "gpuledger_build_info{")
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 ||
		info.Sys().(*syscall.Stat_t).Uid != 0 {
		t.Errorf("the socket is %v (%v)", info, err)
	}
	if _, err := http.Get(s.base); err == nil {
		t.Error("the address is served beside the socket")
	}
	d.End(syscall.SIGKILL) // which leaves the socket
	d = n.Daemon("--nri", "off")
	rig.Eventually(t, "the next one takes the socket over", func() bool {
		return strings.Count(d.Log(), "serving metrics") == 3
	})
	socketOf(t, path).get("/")
	write("")
	rig.Eventually(t, "it is off", func() bool { _, err := os.Stat(path); return os.IsNotExist(err) })
}

// TestDaemonCountsAcrossRotations: lines of many processes, in files that are created and removed
// while it follows them.
func TestDaemonCountsAcrossRotations(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{Config: shows("127.0.0.1:0")})
	config, err := os.ReadFile(n.Config)
	must(t, err)
	n.Write("config.toml", strings.Replace(string(config), "[audit]\n",
		"[audit]\nmax_size = \"16KiB\"\nkeep = 20\n", 1))
	s := siteOf(t, n.Daemon("--nri", "off"))
	s.eventually("/metrics", "gpuledger_audit_followed 1")
	const many = 120
	b := n.Bundle("c", rig.Env("NVIDIA_VISIBLE_DEVICES=all", "CUDA_VERSION=1",
		"NVIDIA_MIG_CONFIG_DEVICES=all"), rig.Light)
	atOnce(4, func(int) int {
		for range many / 4 {
			b.Create()
		}
		return 0
	})
	if _, err := os.Stat(n.Dir + "/audit.jsonl.2"); err != nil {
		t.Fatalf("the log was not rotated twice: %v", err)
	}
	s.eventually("/metrics", fmt.Sprintf(`gpuledger_refusals_total{code="visible-devices-all",`+
		`mode="enforced"} %d`+"\n", many))
	s.eventually("/metrics", "gpuledger_audit_gaps_total 0\n", "gpuledger_audit_unreadable_lines_total 0\n")
}

// TestMonitoringUsesReportedMetrics: a daemon reports to Prometheus every metric that a rule or the
// dashboard of packaging/monitoring queries, with the labels that the query selects by, once there
// is something to report.
func TestMonitoringUsesReportedMetrics(t *testing.T) {
	n := rig.NewNode(t, rig.Setup{Engine: "containerd", Config: adopts +
		strings.Replace(watches, "50ms", "1h", 1)})
	n.Must("configure", "docker", "--file", n.Write("daemon.json", "{}"), "--runtime", program(t, n),
		"--as-default", "--mode", "enforce")
	s := siteOf(t, n.Daemon("--nri", "off"))
	b := starts(t, n.Bundle("used", inPod("train"), allocated("train", "1", "4GiB"), rig.Light))
	isRefused(t, n.Bundle("refused", rig.Env("NVIDIA_VISIBLE_DEVICES=all"), rig.Light).Create(),
		grant.VisibleDevicesAll)
	g := gpusOf(t, n)
	g.runs(b.Init(), 1, 6*grant.GiB)
	g.use.GPUs = []simulated.GPUReading{{GPU: 0, XIDs: []int{79}, Utilization: 3},
		{GPU: 1, Power: 71, Temperature: 43}}
	g.writeUse()
	uuid := n.Grants()[0].GPUs[0].UUID
	s.eventually("/metrics", `gpuledger_finding_bytes{`, "gpuledger_gpu_errors_total{",
		"gpuledger_ledger_sound ", "gpuledger_engine_default{",
		`gpuledger_gpu_power_watts{gpu="`+uuid+`"} 71`, `gpuledger_gpu_temperature_celsius{gpu="`+uuid+
			`"} 43`, `gpuledger_refusals_total{code="visible-devices-all",mode="enforced"} 1`)
	labels := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^(gpuledger_\w+)(\{\S*\})? `).FindAllStringSubmatch(
		s.get("/metrics"), -1) {
		labels[m[1]] += m[2]
	}
	asked := 0
	for _, file := range []string{"alerts.yaml", "grafana.json"} {
		text := strings.ReplaceAll(read(t, "../packaging/monitoring/"+file), `\"`, `"`)
		for _, m := range regexp.MustCompile(`(gpuledger_\w+)(\{[^}]*\})?`).FindAllStringSubmatch(text, -1) {
			reported, known := labels[m[1]]
			if asked++; !known {
				t.Errorf("%s queries %s, which the daemon does not report", file, m[1])
			}
			for _, label := range regexp.MustCompile(`(\w+)[=!]~?"`).FindAllStringSubmatch(m[2], -1) {
				if label[1] != "instance" && !strings.Contains(reported, label[1]+`="`) {
					t.Errorf("%s selects %s by %s, which it does not have: %s", file, m[1], label[1],
						reported)
				}
			}
		}
	}
	if asked < 30 {
		t.Errorf("only %d metrics are queried", asked)
	}
}
