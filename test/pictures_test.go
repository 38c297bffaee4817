package test

import (
	"bytes"
	"cmp"
	"fmt"
	"html"
	goimage "image"
	"image/color"
	"image/png"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpuledger/gpuledger/internal/gpu/simulated"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/browser"
	"github.com/gpuledger/gpuledger/test/rig"
)

// picturesVar names the directory that `make pictures` draws into.
const picturesVar = "PICTURES"

// maxPicture bounds a picture in the repository, in bytes.
const maxPicture = 72 << 10

// painted is a node of which a picture is taken.
type painted struct {
	*gpus
	site
	moving []int // processes whose use varies
}

// paint makes a node with a daemon that watches it.
func paint(t *testing.T, engine string, n int, memory, name string) *painted {
	t.Helper()
	node := rig.NewNode(t, rig.Setup{Engine: engine, Config: adopts +
		strings.Replace(watches, "10ms", "500ms", 1)})
	d, err := simulated.Describe(max(n, 1), must1(grant.ParseBytes(memory)), name, nil)
	must(t, err)
	d.GPUs = d.GPUs[:n]
	must(t, simulated.WriteFile(node.Dir+"/node.json", d))
	node.Must("inventory", "refresh")
	p := &painted{gpus: gpusOf(t, node)}
	p.site = siteOf(t, node.Daemon("--nri", "off"))
	return p
}

func must1[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// uses has a container use about this much of a GPU.
func (p *painted) uses(pid, gpu int, memory grant.Bytes) {
	p.moving = append(p.moving, len(p.use.Processes))
	p.runs(pid, gpu, memory)
}

// pod starts a container of a pod with a grant of its own.
func (p *painted) pod(t *testing.T, gpu int, memory, namespace, pod, container string) *rig.Bundle {
	t.Helper()
	id := fmt.Sprintf("%08x", rand.Uint32())
	return starts(t, p.n.Bundle(id, rig.Identity(fmt.Sprintf("7a1c0000-0000-4000-8000-%012x", rand.Uint32()),
		namespace, pod, container),
		allocated(container, fmt.Sprint(gpu), memory), rig.Light))
}

// painting are the nodes, by name.
func painting(t *testing.T) map[string]*painted {
	all := map[string]*painted{"0-gpus": paint(t, "none", 0, "16GiB", "none")}
	one := paint(t, "containerd", 1, "16160MiB", "Tesla V100-SXM2-16GB")
	one.uses(one.pod(t, 0, "4GiB", "research", "train-0", "train").Init(), 0, 3*grant.GiB)
	one.n.Grant("--memory", "6GiB", "--label", "kept for the demo", "--ttl", "2h")
	all["1-gpu"] = one

	two := paint(t, "containerd", 2, "16160MiB", "Tesla V100-SXM2-16GB")
	two.uses(two.pod(t, 0, "4GiB", "research", "train-0", "train").Init(), 0, 6*grant.GiB)
	two.uses(two.pod(t, 0, "8GiB", "serving", "llm-7c9f", "server").Init(), 0, 7*grant.GiB)
	two.uses(two.pod(t, 1, "4GiB", "research", "notebook-1", "jupyter").Init(), 1, 2*grant.GiB)
	two.runs(dockerContainer(t, two.n).Init(), 1, 5*grant.GiB)
	two.runs(nodeProcess(t), 1, grant.GiB)
	two.use.GPUs = []simulated.GPUReading{{GPU: 0, Utilization: 93, Power: 212, Temperature: 61},
		{GPU: 1, Utilization: 41, Power: 118, Temperature: 49}}
	isRefused(t, two.n.Bundle("refused", rig.Identity("7a1c0000-0000-4000-8000-00000000000c", "research",
		"greedy-0", "main"), rig.Env("NVIDIA_VISIBLE_DEVICES=all"), rig.Light).Create(),
		grant.VisibleDevicesAll)
	all["over-grant"] = two

	eight := paint(t, "containerd", 8, "81559MiB", "NVIDIA H100 80GB HBM3")
	for i := range 8 {
		eight.uses(eight.pod(t, i, "40GiB", "research", fmt.Sprintf("train-%d", i), "train").Init(),
			i, 37*grant.GiB)
		eight.uses(eight.pod(t, i, "30GiB", "serving", fmt.Sprintf("llm-%d", i), "server").Init(), i,
			22*grant.GiB)
		eight.n.Grant("--gpu", fmt.Sprint(i), "--memory", "9879MiB")
		eight.use.GPUs = append(eight.use.GPUs, simulated.GPUReading{
			GPU: i, Utilization: 80 + i, Power: 590 + 10*i, Temperature: 60 + i})
	}
	all["8-gpus-full"] = eight

	sixteen := paint(t, "none", 16, "40960MiB", "NVIDIA A100-SXM4-40GB")
	for i := range 16 {
		switch {
		case i < 4:
			sixteen.n.Grant("--gpu", fmt.Sprint(i), "--mode", "exclusive")
		case i < 6:
			sixteen.n.Grant("--gpu", fmt.Sprint(i), "--mode", "timeslice", "--memory", "20GiB")
		case i < 12:
			b := starts(t, sixteen.n.Bundle(fmt.Sprintf("job-%d", i),
				with(sixteen.n.Grant("--gpu", fmt.Sprint(i), "--memory", fmt.Sprintf("%dGiB", 4+2*i),
					"--compute", "50")), rig.Light))
			sixteen.uses(b.Init(), i, grant.Bytes(2+2*i)*grant.GiB)
		}
	}
	all["16-gpus"] = sixteen

	word := strings.Repeat("a-very-long-name-", 20)
	long := paint(t, "containerd", 1, "16160MiB", "NVIDIA "+strings.Repeat("Long Name Edition ", 5)[:80])
	long.uses(long.pod(t, 0, "4GiB", word[:62]+"z", word[:252]+"z", word[:62]+"z").Init(), 0, 6*grant.GiB)
	all["long-names"] = long
	return all
}

// TestPictures draws the files of docs/pictures: nodes with real containers, a real daemon's page
// and what inspect prints. A person looks at them.
func TestPictures(t *testing.T) {
	dir := os.Getenv(picturesVar)
	if dir == "" || browser.Find() == "" {
		t.Skip("no pictures are wanted, or this machine has no Chromium (`make pictures`): what the page " +
			"looks like is not drawn")
	}
	must(t, os.MkdirAll(dir, 0o755))
	all := painting(t)
	for range 62 { // the page has a minute of history
		for _, p := range all {
			for _, i := range p.moving {
				p.use.Processes[i].Memory += simulated.Memory(rand.IntN(65)-32) * simulated.Memory(grant.MiB)
			}
			p.writeUse()
		}
		time.Sleep(time.Second)
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		p := all[name]
		text := []byte(p.get("/"))
		width := 1000
		if name == "long-names" {
			shoot(t, filepath.Join(dir, "page-long-names-narrow.png"), framed(text, 360),
				browser.Look{Width: 500})
		}
		shoot(t, filepath.Join(dir, "page-"+name+".png"), text, browser.Look{Width: width})
		if name == "over-grant" {
			shoot(t, filepath.Join(dir, "page-"+name+"-dark.png"), text,
				browser.Look{Width: width, Dark: true})
		}
		plain, details := p.n.Must("inspect"), p.n.Must("inspect", "--details")
		inColumns(t, plain+details)
		shown := "$ gpuledger inspect\n" + plain
		if name == "over-grant" || name == "long-names" || name == "1-gpu" {
			shown = "$ gpuledger inspect --details\n" + details
		}
		shoot(t, filepath.Join(dir, "inspect-"+name+".png"),
			[]byte(`<!DOCTYPE html><meta charset="utf-8"><body style="margin:0;background:#fff"><pre `+
				`style="margin:0;padding:12px;font:14px/1.35 'DejaVu Sans Mono',monospace;color:#1c2024">`+
				html.EscapeString(shown)+"</pre>"), browser.Look{Width: 720})
	}
}

// framed shows a document as a narrow window would: a browser without a screen is never narrower
// than 500 pixels.
func framed(document []byte, width int) []byte {
	text := strings.Replace(string(document), `<meta http-equiv="refresh" content="5">`, "", 1)
	return fmt.Appendf(nil, `<!DOCTYPE html><meta charset="utf-8"><body style="margin:0"><iframe `+
		`style="border:0" width="%d" height="4000" srcdoc="%s"></iframe>`, width, html.EscapeString(text))
}

// tallest is the height of the window in which documents are drawn, in pixels. No document is
// taller.
const tallest = 9000

// shoot takes a picture of a whole document, as high as it is.
func shoot(t *testing.T, path string, document []byte, l browser.Look) {
	t.Helper()
	l.Height = tallest
	picture, err := browser.Picture(document, l)
	must(t, err)
	whole, err := png.Decode(bytes.NewReader(picture))
	must(t, err)
	high := heightOf(whole)
	small, err := reduced(whole, 64, high)
	// the upper part of a page of many GPUs
	for ; err == nil && len(small) > maxPicture && high > 400; high -= 200 {
		small, err = reduced(whole, 16, high)
	}
	must(t, err)
	if len(small) > maxPicture {
		t.Errorf("%s has %d bytes", path, len(small))
	}
	must(t, os.WriteFile(path, small, 0o644))
}

// heightOf is the height of what is drawn, without the empty rows below it.
func heightOf(picture goimage.Image) int {
	bounds := picture.Bounds()
	empty := picture.At(bounds.Min.X, bounds.Max.Y-1)
	const margin = 16
	for y := bounds.Max.Y - 1; y >= bounds.Min.Y; y-- {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			if picture.At(x, y) != empty {
				return min(y+margin, bounds.Max.Y) - bounds.Min.Y
			}
		}
	}
	return bounds.Dy()
}

// reduced writes the upper part of a picture, in at most this many colours: its most frequent ones,
// and the nearest of them for every other. Pages have few.
func reduced(from goimage.Image, colours, high int) ([]byte, error) {
	count := map[color.RGBA]int{}
	at := func(x, y int) color.RGBA {
		c := color.RGBAModel.Convert(from.At(x, y)).(color.RGBA)
		return color.RGBA{coarse(c.R), coarse(c.G), coarse(c.B), 255}
	}
	bounds := from.Bounds()
	bounds.Max.Y = min(bounds.Max.Y, bounds.Min.Y+high)
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			count[at(x, y)]++
		}
	}
	most := slices.SortedFunc(maps.Keys(count), func(a, b color.RGBA) int {
		return cmp.Compare(count[b], count[a])
	})
	var palette color.Palette
	for _, c := range most[:min(len(most), colours)] {
		palette = append(palette, c)
	}
	to := goimage.NewPaletted(bounds, palette)
	nearest := map[color.RGBA]uint8{}
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			c := at(x, y)
			i, known := nearest[c]
			if !known {
				i = uint8(palette.Index(c))
				nearest[c] = i
			}
			to.SetColorIndex(x, y, i)
		}
	}
	var out bytes.Buffer
	err := (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, to)
	return out.Bytes(), err
}

// coarse is one of 32 steps.
func coarse(v uint8) uint8 { return uint8(int(v>>3) * 255 / 31) }

// TestPicturesExist: docs show what is drawn, and no other pictures are kept.
func TestPicturesExist(t *testing.T) {
	pictures, err := filepath.Glob("../docs/pictures/*.png")
	must(t, err)
	documents, _ := filepath.Glob("../docs/*.md")
	text := ""
	for _, document := range documents {
		text += read(t, document)
	}
	for _, picture := range pictures {
		info, err := os.Stat(picture)
		must(t, err)
		if name := filepath.Base(picture); !strings.Contains(text, "pictures/"+name) ||
			info.Size() > maxPicture {
			t.Errorf("%s has %d bytes, shown in docs: %v", name, info.Size(),
				strings.Contains(text, "pictures/"+name))
		}
	}
	if len(pictures) < 10 {
		t.Errorf("%d pictures", len(pictures))
	}
}
