package page

import (
	"encoding/json"
	"fmt"
	"html"
	"strings"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/auditlog"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/watch"
	"github.com/gpuledger/gpuledger/test/browser"
)

// crowded is a node of n GPUs with this many grants on each, all of whose memory is granted and
// half of it used.
func crowded(n, each int) Data {
	s := sample(0)
	s.Node.Mode = grant.Report
	for i := range n {
		c := grants.Card{GPU: grant.GPU{UUID: fmt.Sprintf("GPU-%08x-0db3-4679-0464-05f9944454e7", i),
			Index: i,
			Name:  "NVIDIA H100 80GB HBM3", Memory: 80 * grant.GiB, Health: grant.Healthy},
			Mode: grant.Limit, Allocated: 80 * grant.GiB, Compute: 100}
		use := watch.GPUUse{UUID: c.UUID, Total: c.Memory, Used: c.Memory / 2, Utilization: 100}
		for k := range each {
			id := grant.NewID([16]byte{byte(i), byte(k % 26), byte(k / 26)})
			g := held(id, c.UUID, c.Memory/grant.Bytes(each))
			g.Owner = grant.Owner(fmt.Sprintf("pod:7a1c0000-0000-4000-8000-%012x/train", k))
			g.Bindings = []grant.Binding{{Container: "c", Life: grant.Alive,
				Pod: grant.Identity{Namespace: "research", Pod: fmt.Sprintf("job-%d", k),
					Container: "train"}}}
			c.Grants = append(c.Grants, g)
			s.Watch.Grants = append(s.Watch.Grants, watch.GrantUse{
				ID: id, GPU: c.UUID, Granted: c.Memory / grant.Bytes(each),
				Used: c.Memory / grant.Bytes(2*each)})
		}
		s.Node.Cards = append(s.Node.Cards, c)
		s.Watch.GPUs = append(s.Watch.GPUs, use)
	}
	for i := range 61 {
		m := watch.HistorySample{Taken: noon.Add(time.Duration(i-60) * time.Second),
			GPUs: map[string]watch.MemoryLevel{}}
		for _, c := range s.Node.Cards {
			m.GPUs[c.UUID] = watch.MemoryLevel{Used: c.Memory / 2, Granted: c.Memory, Total: c.Memory}
		}
		s.Watch.History = append(s.Watch.History, m)
	}
	return s
}

// longest is a node whose every name is as long as it may be.
func longest() Data {
	s := watched(sample(2))
	word := strings.Repeat("averylongname", 20)
	s.Host = word[:63] + "." + word[:63]
	c := &s.Node.Cards[0]
	c.Name = word[:95]
	c.Grants[0].Owner = grant.Owner("pod:7a1c0000-0000-4000-8000-00000000000b/" + word[:63])
	c.Grants[0].Bindings[0].Pod = grant.Identity{Namespace: word[:63], Pod: word[:253], Container: word[:63]}
	s.Alarms = []Alarm{{Message: `container "` + word[:63] + `" of pod ` + word[:63] + "/" + word[:253] +
		" uses 6GiB of GPU 0, 2GiB more than the 4GiB of its grant g-aaaaaaaaaaaa", Advice: word}}
	s.Refusals = []auditlog.RecordedRefusal{{Time: noon, Code: "visible-devices-all", Mode: auditlog.Enforced,
		Pod: c.Grants[0].Bindings[0].Pod, Message: word + word}}
	return s
}

// scenes are the states that the page must show well.
func scenes() map[string]Data {
	outside := watched(sample(2))
	outside.Alarms = []Alarm{{"it uses more", "end it"}}
	outside.Node.Outside = map[string]grant.Bytes{"GPU-0": 3 * grant.GiB}
	return map[string]Data{"0": sample(0), "1": sample(1), "2": outside, "8": crowded(8, 4),
		"16": crowded(16, 1), "many": crowded(1, 300), "long": longest()}
}

// measured is what a browser reports about a scene at one width.
type measured struct {
	Scene    string
	Width    int
	Scroll   int         // how wide the document is
	Bars     [][]barPart // thick and thin, in thousandths of their width as they are drawn
	Texts    int         // pieces of text that were examined
	Pale     []string    // those that cannot be distinguished from their background
	Graphics []string    // parts of bars that cannot be distinguished from the empty bar
	Cut      []string    // text that is wider than its place
	Dark     bool
}

// look runs the browser: each scene in a frame of its own, at several widths.
const look = `
const seen = [];
// Chromium gives colours as rgb() or rgba().
const rgb = c => (c.match(/[\d.]+/g) || [0, 0, 0, 0]).map(Number);
const light = c => { const [r, g, b] = c.map(x => { x /= 255; return x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const contrast = (a, b) => { const [x, y] = [light(a.slice(0, 3)), light(b.slice(0, 3))].sort((m, n) => n - m); return (x + 0.05) / (y + 0.05); };
function behind(e, win) {
  for (; e; e = e.parentElement) { const c = rgb(win.getComputedStyle(e).backgroundColor); if (c.length < 4 || c[3] > 0) return c; }
  return [255, 255, 255];
}
function measure(frame) {
  const d = frame.contentDocument, win = frame.contentWindow, m = {Scene: frame.dataset.scene, Width: +frame.width, Scroll: d.documentElement.scrollWidth,
    Bars: [], Texts: 0, Pale: [], Graphics: [], Cut: [], Dark: win.matchMedia('(prefers-color-scheme: dark)').matches};
  for (const bar of d.querySelectorAll('svg.bar')) {
    const whole = bar.getBoundingClientRect(), empty = rgb(win.getComputedStyle(bar.querySelector('.free')).fill);
    m.Bars.push([...bar.querySelectorAll('rect:not(.free)')].map(r => {
      const box = r.getBoundingClientRect(), fill = rgb(win.getComputedStyle(r).fill);
      if (contrast(fill, empty) < 2) m.Graphics.push(r.className.baseVal + ' ' + contrast(fill, empty).toFixed(2));
      return {Class: r.className.baseVal, X: Math.round(1000 * (box.left - whole.left) / whole.width), Width: Math.round(1000 * box.width / whole.width)};
    }));
  }
  const walk = d.createTreeWalker(d.body, NodeFilter.SHOW_TEXT);
  for (let t; t = walk.nextNode();) {
    const e = t.parentElement;
    if (!t.data.trim() || e.closest('svg')) continue;
    m.Texts++;
    const fore = rgb(win.getComputedStyle(e).color), ratio = contrast(fore, behind(e, win));
    if (ratio < 4.5) m.Pale.push(t.data.trim().slice(0, 40) + ' ' + ratio.toFixed(2));
    const range = d.createRange(); range.selectNodeContents(t);
    const box = range.getBoundingClientRect();
    if (box.right > m.Width + 1 && !e.closest('.wide')) m.Cut.push(t.data.trim().slice(0, 40));
  }
  seen.push(m);
}
addEventListener('load', () => {
  document.querySelectorAll('iframe').forEach(measure);
  const out = document.createElement('pre'); out.id = 'seen'; out.textContent = JSON.stringify(seen);
  document.body.replaceChildren(out);
});`

// narrowest and usual are the widths of a telephone and of a window.
const narrowest, usual = 360, 1200

func lookAt(t *testing.T, dark bool) (all []measured) {
	t.Helper()
	var frames strings.Builder
	for name, s := range scenes() {
		text := strings.Replace(drawn(t, s), `<meta http-equiv="refresh" content="5">`, "", 1)
		for _, width := range []int{narrowest, usual} {
			fmt.Fprintf(&frames, `<iframe data-scene=%q width="%d" height="600" srcdoc="%s"></iframe>`, name,
				width, html.EscapeString(text))
		}
	}
	dom, err := browser.DOM([]byte("<!DOCTYPE html><meta charset=utf-8><meta name=color-scheme "+
		"content='light dark'><body><script>"+look+"</script>"+frames.String()),
		browser.Look{Dark: dark, Width: 1280, Height: 800})
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(dom, `<pre id="seen">`)
	text, _, _ := strings.Cut(rest, "</pre>")
	if err := json.Unmarshal([]byte(html.UnescapeString(text)), &all); !found || err != nil ||
		len(all) != 2*len(scenes()) {
		t.Fatalf("the browser reports %d frames (%v): %.300s", len(all), err, dom)
	}
	return all
}

// TestInABrowser: at the width of a telephone and of a window, light and dark, only tables scroll
// sideways, every text is readable, and bars are as long as the values that they show.
func TestInABrowser(t *testing.T) {
	if browser.Find() == "" {
		t.Skip("this machine has no Chromium (`make pictures` installs it): how the page looks is not shown")
	}
	for _, dark := range []bool{false, true} {
		for _, m := range lookAt(t, dark) {
			what := fmt.Sprintf("%s, %d pixels, dark %v", m.Scene, m.Width, m.Dark)
			if m.Dark != dark {
				t.Errorf("%s: the scheme is not the requested one", what)
			}
			if m.Scroll > m.Width || len(m.Cut) > 0 {
				t.Errorf("%s: it is %d pixels wide: %q", what, m.Scroll, m.Cut)
			}
			if m.Texts < 5 || len(m.Pale) > 0 || len(m.Graphics) > 0 {
				t.Errorf("%s: of %d texts these are too pale: %q, and these parts of bars: %q", what, m.Texts,
					m.Pale, m.Graphics)
			}
			barsAre(t, what, m)
		}
	}
}

// wantBars are the scenes' bars, in thousandths: what is granted (and found outside), and what is
// used.
var wantBars = map[string][][]barPart{
	"0": {}, "1": {{{Class: "c0", X: 0, Width: 250}, {Class: "c1", X: 250, Width: 500}}},
	"2": {{{Class: "c0", X: 0, Width: 250}, {Class: "c1", X: 250, Width: 500},
		{Class: "outside", X: 750, Width: 188}},
		{{Class: "c0", X: 0, Width: 187}, {Class: "c1", X: 187, Width: 563},
			{Class: "outside", X: 750, Width: 125}}, {{Class: "c0", X: 0, Width: 1000}}},
}

func barsAre(t *testing.T, what string, m measured) {
	t.Helper()
	for _, bar := range m.Bars {
		for i, p := range bar {
			if p.X < 0 || p.Width < 1 || p.X+p.Width > 1002 || i > 0 && m.Scene != "many" &&
				p.X < bar[i-1].X+bar[i-1].Width-3 {
				t.Errorf("%s: a bar is drawn with %+v at %d", what, p, i)
				break
			}
		}
	}
	want, known := wantBars[m.Scene]
	if !known {
		return
	}
	near := func(a, b int) bool { return a-b <= 3 && b-a <= 3 }
	if len(m.Bars) != len(want) {
		t.Errorf("%s: %d bars, want %d", what, len(m.Bars), len(want))
		return
	}
	for i, bar := range want {
		for k, p := range bar {
			if got := m.Bars[i]; len(got) != len(bar) || got[k].Class != p.Class || !near(got[k].X, p.X) ||
				!near(got[k].Width, p.Width) {
				t.Errorf("%s: bar %d is drawn as %+v, want %+v", what, i, got, bar)
				break
			}
		}
	}
}
