// Package page renders the node's status as one HTML document that needs nothing else: no script,
// no image, no font, no second request.
package page

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gpuledger/gpuledger/internal/auditlog"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/grants"
	"github.com/gpuledger/gpuledger/internal/watch"
)

// Data is what the page shows.
type Data struct {
	Host, Version string
	Node          grants.NodeStatus
	Audited       bool // there is an audit log
	Refusals      []auditlog.RecordedRefusal
	Alarms        []Alarm
	Watch         watch.Status
}

// Alarm is something that an administrator should look at.
type Alarm struct {
	Message string
	Advice  string // what to do, with commands in backquotes; "" if the message says it
}

// refresh is how often browsers load the page again, in seconds.
const refresh = 5

// maxGrants is how many grants of one GPU are listed. The bar shows all of them.
const maxGrants = 64

var (
	//go:embed page.html
	markup string
	//go:embed style.css
	style string

	pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
		"stamp": stamp, "size": size, "meaning": meaning}).Parse(markup))
)

// Headers sets the headers of the response: only the document's own style is loaded, no other page
// may frame it, and browsers do not keep it.
func Headers(h http.Header) {
	sum := sha256.Sum256([]byte(style))
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy",
		"default-src 'none'; style-src 'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+
			"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
}

// Render makes the document. An error is a bug of gpuledger.
func Render(s Data) ([]byte, error) {
	var out bytes.Buffer
	if err := pageTemplate.Execute(&out, documentOf(s)); err != nil {
		return nil, fmt.Errorf("internal error: cannot draw the page: %w", err)
	}
	return out.Bytes(), nil
}

// document is what the template shows.
type document struct {
	Title, Host, Version string
	Style                template.CSS
	Refresh              int
	Now                  time.Time
	Mode                 grant.RulesMode
	Policy, Docs         string
	Alarms               []alarm
	Granted, Total       grant.Bytes
	Used                 *grant.Bytes // nil: not known
	GPUs                 []gpu
	Words                []word
	Audited              bool
	Refusals             []refusal
}

type gpu struct {
	Index         int
	Name, UUID    string
	Health        string
	Healthy       bool
	Mode          grant.Mode
	Memory        grant.Bytes
	Granted, Free grant.Bytes
	Outside       grant.Bytes
	Compute       int
	Parts         []barPart
	Use           *use // nil: not known
	History       *history
	Grants        []row
	More          int
}

type alarm struct {
	Message string
	Advice  []piece
}

// piece is a piece of a text: a command, or what is around it.
type piece struct {
	Text string
	Code bool
}

// pieces splits a text at its backquotes.
func pieces(text string) (all []piece) {
	for i, part := range strings.Split(text, "`") {
		if part != "" {
			all = append(all, piece{part, i%2 == 1})
		}
	}
	return all
}

// barPart is a piece of a bar that is 1000 wide.
type barPart struct {
	Class    string
	X, Width int
	Title    string
}

type row struct {
	Class, ID, State, Mode, Strength, Owner, Left string
	Memory                                        grant.Bytes
	Used                                          *grant.Bytes // nil: not known
	Over                                          bool
	Compute                                       int
	Users                                         []string
}

type refusal struct {
	Time                           time.Time
	Code, Note, Container, Message string
}

func documentOf(s Data) document {
	v := document{Title: "gpuledger: " + auditlog.Clean(s.Host), Host: auditlog.Clean(s.Host),
		Version: s.Version, Style: template.CSS(style), Refresh: refresh,
		Now: s.Node.Now, Mode: s.Node.Mode, Policy: policyText(s.Node.Mode),
		Docs: grant.Docs, Audited: s.Audited}
	for _, a := range s.Alarms {
		v.Alarms = append(v.Alarms, alarm{auditlog.Clean(a.Message), pieces(auditlog.Clean(a.Advice))})
	}
	for _, card := range s.Node.Cards {
		g := gpuOf(card, s.Node.Outside[card.UUID], s.Node.Now)
		g.measured(s.Watch, card)
		v.GPUs = append(v.GPUs, g)
		v.add(g.Use)
		v.Granted += card.Allocated
		v.Total += card.Memory
	}
	v.Words = wordsOf(v.GPUs)
	for _, r := range s.Refusals {
		v.Refusals = append(v.Refusals, refusalOf(r))
	}
	return v
}

func gpuOf(c grants.Card, outside grant.Bytes, now time.Time) gpu {
	g := gpu{Index: c.Index, Name: auditlog.Clean(c.Name), UUID: c.UUID, Health: auditlog.Clean(c.Health),
		Healthy: c.Health == grant.Healthy, Mode: c.Mode,
		Memory: c.Memory, Granted: c.Allocated, Free: c.Free, Outside: outside, Compute: c.Compute}
	bar := bar{whole: max(c.Memory, c.Allocated+outside, 1)}
	for i, held := range c.Grants {
		r := rowOf(held, c.UUID, now)
		r.Class, r.Memory = fmt.Sprintf("c%d", i%colours), c.Share(held)
		bar.add(r.Class, r.Memory, r.ID+": "+size(r.Memory))
		if i < maxGrants {
			g.Grants = append(g.Grants, r)
		}
	}
	bar.add("outside", outside, "in use outside the ledger: "+size(outside))
	g.Parts, g.More = bar.parts, len(c.Grants)-len(g.Grants)
	return g
}

// colours is the number of colours in style.css.
const colours = 8

// bar places its parts end to end. A part that is too small to be seen is one wide, so that no
// grant is hidden.
type bar struct {
	whole, taken grant.Bytes
	parts        []barPart
}

func (b *bar) add(class string, size grant.Bytes, title string) {
	if size <= 0 {
		return
	}
	from, to := thousandths(b.taken, b.whole), thousandths(b.taken+size, b.whole)
	b.taken += size
	b.parts = append(b.parts, barPart{Class: class, X: min(from, 999), Width: max(to-from, 1), Title: title})
}

func thousandths(size, whole grant.Bytes) int { return int(float64(size) / float64(whole) * 1000) }

func rowOf(g grant.Grant, uuid string, now time.Time) row {
	r := row{ID: string(g.ID), State: string(g.State(now)), Mode: string(g.Mode),
		Strength: string(g.Strength), Owner: auditlog.Clean(string(g.Owner)), Compute: g.Compute,
		Left: left(g, now)}
	if i := slices.IndexFunc(g.GPUs, func(s grant.Share) bool { return s.UUID == uuid }); i >= 0 {
		r.Memory = g.GPUs[i].Memory
	}
	for _, b := range g.Bindings {
		r.Users = append(r.Users, cmp.Or(name(b.Pod), short(auditlog.Clean(b.Container)),
			"a container that cannot be identified"))
	}
	return r
}

func left(g grant.Grant, now time.Time) string {
	switch rest := g.Expires.Sub(now).Round(time.Second); {
	case g.Expires.IsZero():
		return "never"
	case rest > 0:
		return rest.String()
	}
	return "expired"
}

// name is how people name a container: namespace/pod/container, as far as they are known.
func name(i grant.Identity) string {
	parts := slices.DeleteFunc([]string{i.Namespace, i.Pod, i.Container},
		func(s string) bool { return s == "" })
	return auditlog.Clean(strings.Join(parts, "/"))
}

// short is as much of a container's id as engines show.
func short(id string) string {
	if characters := []rune(id); len(characters) > 32 {
		return string(characters[:12]) + "..."
	}
	return id
}

func refusalOf(r auditlog.RecordedRefusal) refusal {
	v := refusal{Time: r.Time, Code: auditlog.Clean(r.Code), Message: auditlog.Clean(r.Message),
		Container: cmp.Or(name(r.Pod), auditlog.Clean(r.Container))}
	if r.Mode != auditlog.Enforced {
		v.Note = "the container started (" + auditlog.Clean(r.Mode) + ")"
	}
	return v
}

func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }
