package grant

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestSizesNeedAUnit(t *testing.T) {
	for _, c := range []struct {
		text string
		want Bytes
		err  string
	}{
		{text: "4GiB", want: 4 * GiB},
		{text: "512MiB", want: 512 * MiB},
		{text: "1TiB", want: TiB},
		{text: "8KiB", want: 8 * KiB},
		{text: "4Gi", want: 4 * GiB},
		{text: "512Mi", want: 512 * MiB},
		{text: "0MiB", want: 0},
		{text: "16777215TiB", want: 16777215 * TiB},
		{text: "4096", err: `cannot read size "4096": want a whole number and a unit of 1024: KiB, MiB, GiB or TiB, as 4GiB`},
		{text: "", err: `cannot read size "": want a whole number and a unit of 1024: KiB, MiB, GiB or TiB, as 4GiB`},
		{text: "GiB", err: `cannot read size "GiB": want a whole number and a unit of 1024: KiB, MiB, GiB or TiB, as 4GiB`},
		{text: "1.5GiB", err: `cannot read size "1.5GiB": want a whole number and a unit of 1024: KiB, MiB, GiB or TiB, as 4GiB`},
		{text: "-1GiB", err: `cannot read size "-1GiB": want a whole number and a unit of 1024: KiB, MiB, GiB or TiB, as 4GiB`},
		{text: "+1GiB", err: `cannot read size "+1GiB": want a whole number and a unit of 1024: KiB, MiB, GiB or TiB, as 4GiB`},
		{text: "4 GiB", err: `cannot read size "4 GiB": want a whole number and a unit of 1024: KiB, MiB, GiB or TiB, as 4GiB`},
		{text: "4GB", err: `cannot read size "4GB": want a whole number and a unit of 1024: KiB, MiB, GiB or TiB, as 4GiB`},
		{text: "4G", err: `cannot read size "4G": want a whole number and a unit of 1024: KiB, MiB, GiB or TiB, as 4GiB`},
		{text: "4gib", err: `cannot read size "4gib": want a whole number and a unit of 1024: KiB, MiB, GiB or TiB, as 4GiB`},
		{text: "4GiBGiB", err: `cannot read size "4GiBGiB": want a whole number and a unit of 1024: KiB, MiB, GiB or TiB, as 4GiB`},
		{text: "0x4GiB", err: `cannot read size "0x4GiB": want a whole number and a unit of 1024: KiB, MiB, GiB or TiB, as 4GiB`},
		{text: "16777216TiB", err: `cannot read size "16777216TiB": it is too large`},
		{text: "18446744073709551616KiB", err: `cannot read size "18446744073709551616KiB": it is too large`},
	} {
		got, err := ParseBytes(c.text)
		if got != c.want || message(err) != c.err {
			t.Errorf("ParseBytes(%q) = %d, %q; want %d, %q", c.text, got, message(err), c.want, c.err)
		}
	}
}

func TestSizesPrintInTheLargestWholeUnit(t *testing.T) {
	for size, want := range map[Bytes]string{
		0: "0MiB", 4 * GiB: "4GiB", 16160 * MiB: "16160MiB", 17: "17B", 3 * KiB: "3KiB",
		2 * TiB: "2TiB", 1024 * GiB: "1TiB",
		math.MaxUint64: "18446744073709551615B",
	} {
		if got := size.String(); got != want {
			t.Errorf("%d prints as %s, want %s", uint64(size), got, want)
		}
	}
}

func TestIDs(t *testing.T) {
	if got := NewID([16]byte{0, 1, 25, 26, 255, 5, 6, 7, 8, 9, 10, 11, 12}); got != "g-abzavfghijkl" {
		t.Errorf("NewID gives %s", got)
	}
	for text, valid := range map[string]bool{
		"g-abcdefghijkl": true, "g-abcdefghijk": false, "g-abcdefghijklm": false, "g-ABCDEFGHIJKL": false,
		"g-abcdefghijk1": false,
		"abcdefghijkl":   false, "": false, "g-": false, "g-../../../etc": false, "g-abcdefghijkl\n": false,
	} {
		if id, err := ParseID(text); (err == nil) != valid || valid && id != ID(text) {
			t.Errorf("ParseID(%q) = %q, %v", text, id, err)
		}
	}
}

const secret = "00112233445566778899aabbccddeeff"

func TestReferences(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       Reference
		err        string
	}{
		{name: "a pod's grant", text: "g-abcdefghijkl", want: Reference{ID: "g-abcdefghijkl"}},
		{name: "a bearer's grant", text: "g-abcdefghijkl." + secret, want: Reference{ID: "g-abcdefghijkl", Secret: secret}},
		{name: "nothing", text: "", err: "cannot read grant reference: want ID or ID.SECRET as `gpuledger grant` printed it"},
		{name: "the secret alone", text: secret, err: "cannot read grant reference: want ID or ID.SECRET as `gpuledger grant` printed it"},
		{name: "the secret first", text: secret + ".g-abcdefghijkl", err: "cannot read grant reference: want ID or ID.SECRET as `gpuledger grant` printed it"},
		{name: "a colon for the dot", text: "g-abcdefghijkl:" + secret, err: "cannot read grant reference: want ID or ID.SECRET as `gpuledger grant` printed it"},
		{name: "an empty secret", text: "g-abcdefghijkl.", err: "cannot read grant reference g-abcdefghijkl: the secret after the dot is not 32 hexadecimal digits"},
		{name: "a short secret", text: "g-abcdefghijkl." + secret[1:], err: "cannot read grant reference g-abcdefghijkl: the secret after the dot is not 32 hexadecimal digits"},
		{name: "a long secret", text: "g-abcdefghijkl." + secret + "00", err: "cannot read grant reference g-abcdefghijkl: the secret after the dot is not 32 hexadecimal digits"},
		{name: "capitals", text: "g-abcdefghijkl." + strings.ToUpper(secret), err: "cannot read grant reference g-abcdefghijkl: the secret after the dot is not 32 hexadecimal digits"},
		{name: "a newline at the end", text: "g-abcdefghijkl." + secret + "\n", err: "cannot read grant reference g-abcdefghijkl: the secret after the dot is not 32 hexadecimal digits"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := ParseReference(c.text)
			if got != c.want || message(err) != c.err {
				t.Errorf("got %+v, %q; want %+v, %q", got, message(err), c.want, c.err)
			}
			if err == nil && got.String() != c.text {
				t.Errorf("it prints as %q", got)
			}
			if err != nil && strings.Contains(strings.ToLower(err.Error()), secret[1:]) {
				t.Errorf("the error repeats the secret: %v", err)
			}
		})
	}
}

func TestOnlyTheSecretOpensAGrant(t *testing.T) {
	hash := SecretHash(secret)
	if strings.Contains(hash, secret) || hash == secret {
		t.Fatal("the hash shows the secret")
	}
	for name, c := range map[string]struct {
		reference Reference
		hash      string
		want      bool
	}{
		"the secret":                    {Reference{Secret: secret}, hash, true},
		"another secret":                {Reference{Secret: strings.Repeat("0", 32)}, hash, false},
		"no secret":                     {Reference{}, hash, false},
		"the hash itself":               {Reference{Secret: hash}, hash, false},
		"no secret, and none is needed": {Reference{}, "", false},
		"a secret where there is none":  {Reference{Secret: secret}, "", false},
	} {
		if got := c.reference.Opens(c.hash); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	if NewSecret([16]byte{0: 0x0f, 15: 0xf0}) != "0f0000000000000000000000000000f0" {
		t.Error("NewSecret does not give 32 hexadecimal digits")
	}
}

func TestOwners(t *testing.T) {
	for _, c := range []struct {
		text, group        string
		secret, pod, claim bool
	}{
		{text: "bearer", secret: true},
		{text: "pod:4f1c-22/train", group: "pod:4f1c-22", pod: true},
		{text: "claim:77aa", group: "claim:77aa", secret: true, claim: true},
	} {
		o, err := ParseOwner(c.text)
		if err != nil || string(o) != c.text || o.Group() != c.group || o.HasSecret() != c.secret ||
			o.IsPod() != c.pod || o.IsClaim() != c.claim {
			t.Errorf("%s: %v, group %q, secret %v, pod %v, claim %v, %v", c.text, o, o.Group(), o.HasSecret(),
				o.IsPod(), o.IsClaim(), err)
		}
	}
	for _, bad := range []string{"", "bearer:", "bearer:x", "Bearer", "pod:", "pod:uid", "pod:uid/", "pod:/c",
		"pod:uid/c/d", "pod:../c", "pod:./c", "pod:u\n/c",
		"claim:", "claim:a/b", "claim:..", "claim:" + strings.Repeat("a", 254), "user:1", "pod:ü/c"} {
		if o, err := ParseOwner(bad); err == nil || o != "" ||
			!strings.HasPrefix(err.Error(), "cannot read owner ") {
			t.Errorf("ParseOwner(%q) = %q, %v", bad, o, err)
		}
	}
	for want, id := range map[Owner]Identity{
		"pod:u/c": {UID: "u", Namespace: "n", Pod: "p", Container: "c"},
		"":        {Namespace: "n", Pod: "p", Container: "c"}, // containerd before 1.6.11 reports no UID
	} {
		if id.Owner() != want {
			t.Errorf("%+v owns as %q, want %q", id, id.Owner(), want)
		}
	}
	if (Identity{UID: "u"}).Owner() != "" {
		t.Error("a pod's sandbox owns something")
	}
}

// The list is a contract: its members and their order.
func TestRefusalCodesAreAClosedList(t *testing.T) {
	want := []Code{"internal", "rules-not-enforced", "config-invalid", "spec-invalid", "inventory-missing",
		"inventory-stale", "ledger-unreadable", "annotation-malformed",
		"annotation-mismatch", "grant-not-found", "grant-owner-mismatch", "grant-expired", "grant-in-use",
		"gpu-unhealthy", "mode-conflict", "ask-not-allowed", "quota-exceeded",
		"no-capacity",
		"limit-unenforceable", "mps-not-ready", "injection-impossible", "visible-devices-all",
		"visible-devices-outside-grant", "gpu-env", "gpu-device-node",
		"gpu-device-rule", "gpu-bind-mount", "gpu-socket", "gpu-hook",
		"cdi-device-outside-grant", "privileged-gpu"}
	if !slices.Equal(Codes, want) {
		t.Errorf("the codes are\n%v\nwant\n%v", Codes, want)
	}
	for i, c := range want {
		if c.Rank() != i {
			t.Errorf("%s ranks %d, want %d", c, c.Rank(), i)
		}
	}
	if Code("made-up").Rank() >= Internal.Rank() {
		t.Error("an unknown code does not rank first")
	}
}

func TestModesAndStrengths(t *testing.T) {
	for _, m := range []Mode{"exclusive", "timeslice", "limit", "mps", "mig"} {
		if got, err := ParseMode(string(m)); got != m || err != nil {
			t.Errorf("ParseMode(%q) = %q, %v", m, got, err)
		}
	}
	if _, err := ParseMode("Limit"); message(
		err) != `cannot read mode: want exclusive or timeslice or limit or mps or mig, not "Limit"` {
		t.Errorf("got %v", err)
	}
	weakestFirst := []Strength{"none", "library", "server", "driver", "hardware"}
	for i, s := range weakestFirst {
		for j, want := range weakestFirst {
			if s.AtLeast(want) != (i >= j) {
				t.Errorf("%s at least %s: %v", s, want, s.AtLeast(want))
			}
		}
	}
	if Strength("").AtLeast(StrengthNone) {
		t.Error("an unknown strength is as strong as none")
	}
}

func TestAGrantCountsUntilItsLastContainerEnds(t *testing.T) {
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	bound := []Binding{{Life: Alive}}
	unknown := []Binding{{Life: Alive}, {Life: LifeUnknown}}
	for name, c := range map[string]struct {
		grant Grant
		live  bool
		state State
	}{
		"fresh":                             {Grant{}, true, Free},
		"not yet over":                      {Grant{Expires: now.Add(1)}, true, Free},
		"over at this very moment":          {Grant{Expires: now}, false, Free},
		"in use":                            {Grant{Bindings: bound}, true, Bound},
		"in use, over":                      {Grant{Bindings: bound, Expires: now}, true, Draining},
		"in use, released":                  {Grant{Bindings: bound, Draining: true}, true, Draining},
		"released, and its container ended": {Grant{Draining: true}, false, Free},
		"bound in another pid namespace":    {Grant{Bindings: unknown}, true, Unknown},
		"the same, released":                {Grant{Bindings: unknown, Draining: true}, true, Unknown},
	} {
		if c.grant.Live(now) != c.live || c.grant.State(now) != c.state {
			t.Errorf("%s: live %v, state %s; want %v, %s", name, c.grant.Live(now),
				c.grant.State(now), c.live, c.state)
		}
	}
}

func TestAGrantKnowsItsGPUs(t *testing.T) {
	g := Grant{GPUs: []Share{{UUID: "GPU-a", Memory: GiB}, {UUID: "GPU-b", Memory: 2 * GiB}}}
	if g.Memory() != 3*GiB || !g.Has("GPU-b") || g.Has("GPU-c") || g.Has("") {
		t.Errorf("memory %s, b %v, c %v, none %v", g.Memory(), g.Has("GPU-b"), g.Has("GPU-c"), g.Has(""))
	}
	inv := Inventory{GPUs: []GPU{{UUID: "GPU-a", Index: 0}, {UUID: "GPU-b", Index: 1}}}
	for name, want := range map[string]string{"GPU-b": "GPU-b", "0": "GPU-a", "1": "GPU-b", "2": "",
		"": "", "01": "", "gpu-a": ""} {
		if gpu, found := inv.Find(name); gpu.UUID != want || found != (want != "") {
			t.Errorf("Find(%q) = %q, %v; want %q", name, gpu.UUID, found, want)
		}
	}
}

func TestPoolsNameGPUs(t *testing.T) {
	for _, c := range []struct {
		name        string
		first, last int
		valid       bool
	}{
		{"3", 3, 3, true}, {"0-3", 0, 3, true}, {"GPU-1-2", -1, -1, true}, {"", 0, 0, false},
		{"3-1", 0, 0, false}, {"1-", 0, 0, false},
		{"1x", 0, 0, false}, {"0-99999999999999999999", 0, 0, false},
	} {
		first, last, err := ParseRange(c.name)
		if first != c.first || last != c.last || (err == nil) != c.valid {
			t.Errorf("ParseRange(%q) = %d, %d, %v", c.name, first, last, err)
		}
	}
	pool := Pool{GPUs: []string{"1-2", "GPU-x"}}
	for _, c := range []struct {
		gpu  GPU
		want bool
	}{{GPU{Index: 0}, false}, {GPU{Index: 1}, true}, {GPU{Index: 2}, true}, {GPU{Index: 3},
		false}, {GPU{UUID: "GPU-x", Index: 7}, true}} {
		if pool.Has(c.gpu) != c.want {
			t.Errorf("pool has GPU %d %q: %v", c.gpu.Index, c.gpu.UUID, pool.Has(c.gpu))
		}
	}
}

func TestALabelIsShortPrintableText(t *testing.T) {
	for text, valid := range map[string]bool{"": true, "train ä": true, strings.Repeat("x", MaxText): true,
		strings.Repeat("x", MaxText+1): false, strings.Repeat("ä", MaxText/2+1): false, "a\x1b[31m": false,
		"a\nb": false, "a\xff": false} {
		if err := CheckText(text); (err == nil) != valid {
			t.Errorf("%q: %v, want valid: %v", text, err, valid)
		}
	}
}

func TestPrintableEscapesForeignText(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"plain text":             {"NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=all"},
		"text of another script": {"größe 模型", "größe 模型"},
		"a new line":             {"a\nlevel=error", `a\nlevel=error`},
		"a terminal's code":      {"\x1b[2J\x07", `\x1b[2J\a`},
		"right to left":          {"a\u202eb", `a\u202eb`},
		"no UTF-8":               {"a\xffb", `a\xffb`},
		"a quotation mark":       {`say "no"`, `say "no"`},
		"200 characters":         {strings.Repeat("ä", 200), strings.Repeat("ä", 200)},
		"201 characters":         {strings.Repeat("ä", 201), strings.Repeat("ä", 200) + "..."},
		"a megabyte of newlines": {strings.Repeat("\n", 1<<20), strings.Repeat(`\n`, 100) + "..."},
	} {
		if got := Printable(c.text); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

func TestChoicesUnmarshalText(t *testing.T) {
	var p Privileged
	if err := p.UnmarshalText([]byte("strip")); err != nil || p != Strip {
		t.Errorf("got %q, %v", p, err)
	}
	if err := p.UnmarshalText([]byte("Strip")); message(err) != `want refuse or strip, not "Strip"` ||
		p != Strip {
		t.Errorf("got %q, %v", p, err)
	}
	var s Size
	if err := s.UnmarshalText([]byte("1GiB")); err != nil || Bytes(s) != GiB {
		t.Errorf("got %d, %v", s, err)
	}
}

func TestVerdictsThatChangeASpec(t *testing.T) {
	for name, c := range map[string]struct {
		verdict Verdict
		touches bool
		refuses bool
	}{
		"pass":           {Verdict{Kind: Pass, Recorded: []string{"node-root by mount:/host"}}, false, false},
		"pass, hidden":   {Verdict{Kind: Pass, Removed: []Removal{{Kind: RemoveEnv, Name: "X"}}}, true, false},
		"pass, stripped": {Verdict{Kind: Pass, Narrow: true}, true, false},
		"admit":          {Verdict{Kind: Admit}, true, false},
		"refuse":         {Verdict{Kind: Refused, Code: GPUHook, Message: "m", Removed: []Removal{{Kind: RemoveEnv, Name: "X"}}}, false, true},
	} {
		if c.verdict.Touches() != c.touches || (c.verdict.Refusal() != nil) != c.refuses {
			t.Errorf("%s: touches %v, refusal %v", name, c.verdict.Touches(), c.verdict.Refusal())
		}
	}
	r := Verdict{Kind: Refused, Code: GPUHook, Message: "container x has a hook", Hint: "h"}.Refusal()
	if r.Error() != "refused (gpu-hook): container x has a hook" || r.Hint != "h" {
		t.Errorf("got %q", r)
	}
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// TestMPSOfADriver: a driver that cannot serve what is wanted is named, with one that can.
func TestMPSOfADriver(t *testing.T) {
	programs := []DriverFile{{Kind: FileBinary, Target: "/usr/bin/" + MPSControl},
		{Kind: FileBinary, Target: "/usr/sbin/" + MPSServer},
		{Kind: FileLibrary, Target: "/usr/lib/" + MPSServer}}
	const old = "does not limit the memory of MPS clients, as driver 495 and newer do"
	const single = `does not know -multiuser-server, which enforcement.mps_users = "all" needs; ` +
		`driver 580 does`
	for _, c := range []struct {
		version    string
		files      []DriverFile
		mps, users string
	}{
		{"", programs, "", ""},
		{"470.256.02", programs, "driver 470.256.02 " + old, "driver 470.256.02 " + single},
		{"495.29", programs, "", "driver 495.29 " + single},
		{"550.54.15", programs, "", "driver 550.54.15 " + single},
		{"565.57.01", programs, "", ""}, // not known: it is tried
		{"580.65.06", programs, "", ""},
		{"580.65.06", nil, "the driver's files in the inventory have no " + MPSControl, ""},
		{"580.65.06", programs[1:], "the driver's files in the inventory have no " + MPSControl, ""},
		{"580.65.06", programs[:1], "the driver's files in the inventory have no " + MPSServer, ""},
		{"470.256.02", programs[:1], "the driver's files in the inventory have no " + MPSServer,
			"driver 470.256.02 " + single},
	} {
		d := Driver{Version: c.version, Files: c.files}
		if got := d.MPSProblem(); got != c.mps {
			t.Errorf("%s: %q, want %q", c.version, got, c.mps)
		}
		if got := d.MPSUsersProblem(); got != c.users {
			t.Errorf("%s: %q, want %q", c.version, got, c.users)
		}
	}
}
