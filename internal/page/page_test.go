package page

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/auditlog"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/watch"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// sample is a node of n GPUs, the first with two grants, the second overfull.
func sample(n int) Data {
	s := Data{Host: "node-1", Version: "v1.2.3", Audited: true}
	s.Node.Now, s.Node.Mode = noon, grant.Enforce
	for i := range n {
		c := grants.Card{GPU: grant.GPU{UUID: fmt.Sprintf("GPU-%d", i), Index: i, Name: "Tesla V100",
			Memory: 16 * grant.GiB, Health: grant.Healthy}, Free: 16 * grant.GiB}
		switch i {
		case 0:
			c.Mode, c.Compute, c.Allocated, c.Free = grant.Limit, 50, 12*grant.GiB, 4*grant.GiB
			c.Grants = []grant.Grant{held("g-aaaaaaaaaaaa", c.UUID, 4*grant.GiB),
				held("g-bbbbbbbbbbbb", c.UUID, 8*grant.GiB)}
			c.Grants[0].Bindings = []grant.Binding{{Container: "0123", Life: grant.Alive,
				Pod: grant.Identity{Namespace: "team", Pod: "job-0", Container: "train"}}}
			c.Grants[1].Expires, c.Grants[1].Compute = noon.Add(90*time.Second), 50
		case 1:
			c.Mode, c.Allocated, c.Free, c.Health = grant.Limit, 32*grant.GiB, 0, "it fell off the bus"
			c.Grants = []grant.Grant{held("g-cccccccccccc", c.UUID, 32*grant.GiB)}
		}
		s.Node.Cards = append(s.Node.Cards, c)
	}
	return s
}

func held(id grant.ID, uuid string, memory grant.Bytes) grant.Grant {
	return grant.Grant{ID: id, Owner: grant.Bearer, Mode: grant.Limit, Strength: grant.StrengthLibrary,
		GPUs: []grant.Share{{UUID: uuid, Memory: memory}}}
}

// drawn renders a state and checks what must hold for every document.
func drawn(t *testing.T, s Data) string {
	t.Helper()
	text, err := Render(s)
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	balanced(t, page)
	for _, wrong := range []string{"<script", "<img", "<link", "<iframe", "javascript:", "http://",
		"https://", " on", "ZgotmplZ", "style="} {
		for _, tag := range regexp.MustCompile(`<[a-z][^>]*>`).FindAllString(page, -1) {
			if strings.Contains(tag, wrong) {
				t.Errorf("the page has %s", tag)
			}
		}
	}
	h := http.Header{}
	Headers(h)
	_, rest, _ := strings.Cut(page, "<style>")
	css, _, _ := strings.Cut(rest, "</style>")
	sum := sha256.Sum256([]byte(css))
	if policy := h.Get("Content-Security-Policy"); !strings.HasPrefix(policy, "default-src 'none'; ") ||
		!strings.Contains(policy, base64.StdEncoding.EncodeToString(sum[:])) {
		t.Errorf("the policy %q does not allow the page's style", policy)
	}
	return page
}

// balanced reads the document as browsers do, strictly: text that is not escaped would show here.
func balanced(t *testing.T, page string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(page))
	d.Strict, d.AutoClose, d.Entity = false, xml.HTMLAutoClose, xml.HTMLEntity
	for depth := 0; ; {
		switch token, err := d.Token(); {
		case errors.Is(err, io.EOF):
			if depth != 0 {
				t.Errorf("%d elements are not closed", depth)
			}
			return
		case err != nil:
			t.Fatalf("the page is no document: %v\n%s", err, page)
		default:
			switch token.(type) {
			case xml.StartElement:
				depth++
			case xml.EndElement:
				depth--
			}
		}
	}
}

func TestNodes(t *testing.T) {
	for _, n := range []int{0, 1, 2, 8, 16} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			page := drawn(t, sample(n))
			if got := strings.Count(page, "<svg"); got != n {
				t.Errorf("%d bars, want %d", got, n)
			}
			if none := strings.Contains(page, "There is no GPU"); none != (n == 0) {
				t.Errorf("that there is no GPU is shown: %v", none)
			}
		})
	}
}

func TestBar(t *testing.T) {
	page := drawn(t, sample(2))
	for _, want := range []string{
		`<rect class="c0" x="0" y="0" width="250" height="28"><title>g-aaaaaaaaaaaa: 4.0 GiB</title>`,
		`<rect class="c1" x="250" y="0" width="500" height="28">`,
		"memory granted</dt><dd>12.0 GiB of 16.0 GiB<", "memory left</dt><dd>4.0 GiB to grant<",
		"compute granted</dt><dd>50 %<", "mode</dt><dd>limit<", "memory in use</dt><dd>not known<",
		"<strong>44.0 GiB</strong> of 32.0 GiB granted on 2 GPUs", "team/job-0/train",
		"<td>1m30s</td>", "<td>never</td>",
		"Nothing needs attention.",
		`<strong class="bad">it fell off the bus</strong>; it gets no new grants`,
		`<rect class="c0" x="0" y="0" width="1000" height="28">`, "There is none in the audit log",
		"Mode <strong>enforce</strong>: a container that reaches a GPU without a grant for it does not start",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
}

// watched adds the use to the sample: the first grant within its limit, the second above, and a
// process of the node.
func watched(s Data) Data {
	w := &s.Watch
	w.Samples = 3
	w.GPUs = []watch.GPUUse{{UUID: "GPU-0", Used: 14 * grant.GiB, Outside: 3 * grant.GiB, Utilization: 70,
		Power: 71500, Temperature: 43}}
	w.Grants = []watch.GrantUse{{ID: "g-aaaaaaaaaaaa", GPU: "GPU-0", Used: 3 * grant.GiB},
		{ID: "g-bbbbbbbbbbbb", GPU: "GPU-0", Used: 9 * grant.GiB}}
	w.Findings = []grant.Finding{{Kind: grant.OverGrant, GPU: "GPU-0", Grant: "g-bbbbbbbbbbbb",
		Bytes: grant.GiB, Message: "it uses more"}}
	for i := range 61 {
		w.History = append(w.History, watch.HistorySample{Taken: noon.Add(time.Duration(i-60) * time.Second),
			GPUs: map[string]watch.MemoryLevel{"GPU-0": {Used: grant.Bytes(i) * 14 * grant.GiB / 60,
				Granted: 12 * grant.GiB, Total: 16 * grant.GiB}}})
	}
	return s
}

func TestUse(t *testing.T) {
	page := drawn(t, watched(sample(2)))
	for _, want := range []string{
		"memory in use</dt><dd>14.0 GiB<", "busy</dt><dd>70 % of the time<", "power</dt><dd>72 W<",
		"temperature</dt><dd>43 °C<",
		"and <strong>14.0 GiB</strong> in use on 2 GPUs", "<td>3.0 GiB</td>",
		`<td><strong class="bad">9.0 GiB</strong></td>`,
		`<rect class="c0" x="0" y="0" width="187" height="10"><title>g-aaaaaaaaaaaa uses 3.0 GiB</title>`,
		`<rect class="outside" x="750" y="0" width="125" height="10">`,
		`<polyline class="granted" points="0,15.0 `, ` 1000,7.5 1000,60"/>`,
		"in the last 60 seconds, up to 16.0 GiB",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if strings.Count(page, `class="history"`) != 1 {
		t.Error("a GPU of which nothing is known has a history")
	}
	s := watched(sample(2))
	s.Watch.Failure = "NVML hangs"
	if page := drawn(t, s); strings.Contains(page, "14.0 GiB") || strings.Contains(page, "43 °C") ||
		strings.Contains(page, "<polyline") {
		t.Error("what was used some time ago is shown as what is used")
	}
}

func TestManyGrants(t *testing.T) {
	s := sample(1)
	c := &s.Node.Cards[0]
	c.Grants, c.Allocated = nil, 0
	for range 1000 {
		c.Grants = append(c.Grants, held("g-aaaaaaaaaaaa", c.UUID, 16*grant.MiB))
		c.Allocated += 16 * grant.MiB
	}
	page := drawn(t, s)
	if rows := strings.Count(page, `<i class="key`); rows != maxGrants ||
		!strings.Contains(page, "and 936 more grants") {
		t.Errorf("%d rows", rows)
	}
	for _, place := range regexp.MustCompile(`x="(\d+)" y="0" width="(\d+)"`).FindAllStringSubmatch(page,
		-1) {
		var x, width int
		fmt.Sscan(place[1], &x)
		fmt.Sscan(place[2], &width)
		if width < 1 || x+width > 1001 {
			t.Fatalf("a part begins at %v", place)
		}
	}
}

func TestAdvice(t *testing.T) {
	s := sample(0)
	s.Alarms = []Alarm{{"it is too warm", "run `fan --fast`, then look again"}, {Message: "no advice"}}
	page := drawn(t, s)
	if !strings.Contains(page, "<p>it is too warm</p>"+
		`<p class="advice">What to do: run <code>fan --fast</code>, then look again</p>`) ||
		strings.Count(page, "What to do") != 1 || strings.Contains(page, "Nothing needs attention") {
		t.Errorf("the page is %s", page)
	}
}

// hostile is what a tenant can get into names and messages.
const hostile = "</td></table><script>alert(1)</script><img src=x " +
	"onerror=alert(1)>\"'><style>*{display:none}</style>\u202e\x1b[2J{{.}} " +
	"g-abcdefghijkl.00112233445566778899aabbccddeeff"

func TestHostileText(t *testing.T) {
	s := sample(1)
	s.Host, s.Alarms = hostile, []Alarm{{hostile, hostile}}
	c := &s.Node.Cards[0]
	c.Name, c.Health = hostile, hostile
	c.Grants[0].Owner = hostile
	c.Grants[0].Bindings = []grant.Binding{{Container: hostile},
		{Pod: grant.Identity{Namespace: hostile, Pod: hostile, Container: hostile}}}
	s.Refusals = []auditlog.RecordedRefusal{{Time: noon, Code: hostile, Mode: "report", Message: hostile,
		Container: hostile}, {Mode: hostile, Pod: grant.Identity{Pod: hostile}}}
	page := drawn(t, s)
	for _, bad := range []string{"<script", "<img", "\u202e", "\x1b", "00112233"} {
		if strings.Contains(page, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
	if strings.Count(page, "<style") != 1 || !strings.Contains(page, "the container started (report)") {
		t.Error("text became markup, or a refusal is missing")
	}
}

func TestLongNames(t *testing.T) {
	s := sample(1)
	long := strings.Repeat("very-long-name-", 300)
	s.Node.Cards[0].Name = long
	s.Node.Cards[0].Grants[0].Bindings[0] = grant.Binding{Container: long}
	if page := drawn(t, s); strings.Contains(page, long) || !strings.Contains(page, "very-long-na...") {
		t.Error("long names are not cut")
	}
}
