package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/urfave/cli/v2"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/gpuledger/gpuledger/internal/edit"
	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/node"
	"github.com/gpuledger/gpuledger/internal/request"
	"github.com/gpuledger/gpuledger/internal/users"
)

func explainCommand() *cli.Command {
	return &cli.Command{
		Name:      "explain",
		Usage:     "print the verdict about a container, without starting it",
		UsageText: "gpuledger explain --bundle DIR [--json]",
		Description: "Reads DIR/config.json as gpuledger-runtime would at create. Exit status 0: mode " +
			"enforce starts it; 3: mode enforce refuses it.\n\nIn report mode, and while gpuledger is " +
			"disabled, verdict and status are those of mode enforce. The container would start " +
			"unchanged all the same, and the first line says so (with --json the key mode). A user " +
			"without root can explain a bundle of its own: gpuledgerd provides what the ledger has. The " +
			"verdict is then that for an engine of root.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "bundle", Usage: "the container's bundle `DIR`", Value: "."},
			jsonFlag(),
		},
		Action: explain,
	}
}

func explain(c *cli.Context) error {
	if err := noArguments(c); err != nil {
		return err
	}
	n := openAnyway(c)
	bundle, err := filepath.Abs(c.String("bundle"))
	if err != nil {
		return fmt.Errorf("cannot find the bundle: %w", err)
	}
	config, err := os.ReadFile(filepath.Join(bundle, "config.json"))
	if err != nil {
		return fmt.Errorf("cannot read the bundle: %w", err)
	}
	container := grant.Container{Engine: n.Policy.Engine, ID: filepath.Base(bundle), Bundle: bundle}
	create := node.Create{Caller: request.Caller{Container: container}, Config: config, Hooked: true}
	d, mode, err := explained(c, n, create)
	if err != nil {
		return err
	}
	if n.Broken != nil {
		fmt.Fprintf(c.App.ErrWriter, "gpuledger: warning: %v\n", n.Broken)
	}
	if c.Bool("json") {
		err = printJSON(c.App.Writer, explainToJSON(mode, d))
	} else {
		err = printVerdict(c.App.Writer, mode, d)
	}
	if err == nil && d.Kind == grant.Refused {
		return errRefused
	}
	return err
}

// explained returns the decision about a create, and the mode in force. For root it reads the
// node's files; for another user it asks gpuledgerd.
func explained(c *cli.Context, n *node.Node, create node.Create) (node.Decision, grant.RulesMode, error) {
	client, is := asUser(c)
	if !is {
		return n.Explain(create), n.Mode(), nil
	}
	if errors.Is(n.Broken, fs.ErrPermission) {
		return node.Decision{}, "", n.Broken
	}
	references := referencesIn(create.Config)
	seen, err := client.Basis(context.Background(), references)
	if err != nil {
		return node.Decision{}, "", err
	}
	b := node.Basis{View: seen.View(references), Inventory: seen.Inventory, Problem: seen.Problem}
	b.Inventory.Shim, b.Inventory.Limiter = seen.Shim, seen.Limiter
	mode := n.Mode()
	if seen.Paused {
		mode = grant.Disabled
	}
	return node.ExplainBy(n, create, b), mode, nil
}

// reference matches what may be a grant's reference with its secret.
var reference = regexp.MustCompile(`g-[a-z0-9]+\.[0-9a-f]+`)

// referencesIn lists the references anywhere in a config.json.
func referencesIn(config []byte) (all []string) {
	for _, text := range reference.FindAllString(string(config), -1) {
		if _, err := grant.ParseReference(text); err == nil && !slices.Contains(all, text) &&
			len(all) < users.MaxReferences {
			all = append(all, text)
		}
	}
	return all
}

// explainJSON is a contract.
type explainJSON struct {
	Verdict grant.VerdictKind `json:"verdict"`
	// "report" or "disabled": the verdict is what enforce would say
	Mode     grant.RulesMode `json:"mode,omitempty"`
	Code     grant.Code      `json:"code"`
	Message  string          `json:"message"`
	Hint     string          `json:"hint"`
	Grant    grant.ID        `json:"grant"`
	Strength grant.Strength  `json:"strength"`
	// strength of the compute share, if launches are throttled
	ComputeStrength grant.Strength            `json:"compute_strength,omitempty"`
	Details         []grant.Detail            `json:"details"`
	Edits           cdispec.ContainerEdits    `json:"edits"`
	Rules           []specs.LinuxDeviceCgroup `json:"device_rules"`
	Removed         []string                  `json:"removed"`
	Recorded        []string                  `json:"recorded"`
}

func explainToJSON(mode grant.RulesMode, d node.Decision) explainJSON {
	j := explainJSON{Verdict: d.Kind, Code: d.Code, Message: d.Message, Hint: d.Hint, Strength: d.Strength,
		Details: d.Details, Edits: d.Edits,
		Rules: edit.Rules(d.Verdict), Removed: []string{}, Recorded: d.Recorded}
	if mode != grant.Enforce {
		j.Mode = mode
	}
	if d.Grant != nil {
		j.Grant = d.Grant.ID
	}
	if d.Throttled {
		j.ComputeStrength = d.Strength
	}
	for _, r := range d.Removed {
		j.Removed = append(j.Removed, r.String())
	}
	if j.Details == nil {
		j.Details = []grant.Detail{}
	}
	if j.Rules == nil {
		j.Rules = []specs.LinuxDeviceCgroup{}
	}
	if j.Recorded == nil {
		j.Recorded = []string{}
	}
	return j
}

// inForce says what becomes of a container that the verdict would refuse or change; "" in mode
// enforce, because then the verdict itself says it.
func inForce(mode grant.RulesMode) string {
	switch mode {
	case grant.Report:
		return "policy.mode is report: the container starts unchanged. In mode enforce:\n"
	case grant.Disabled:
		return "gpuledger is disabled: the container starts unchanged. In mode enforce:\n"
	}
	return ""
}

// printVerdict prints a verdict for people.
func printVerdict(w io.Writer, mode grant.RulesMode, d node.Decision) error {
	if d.Kind == grant.Refused || d.Kind == grant.Pass && d.Touches() {
		fmt.Fprint(w, inForce(mode))
	}
	switch d.Kind {
	case grant.Refused:
		fmt.Fprintf(w, "refuse (%s): %s\n", d.Code, d.Message)
		if d.Hint != "" {
			fmt.Fprintf(w, "hint: %s\n", d.Hint)
		}
	case grant.Admit:
		by := fmt.Sprintf("admit by grant %s (%s)", d.Grant.ID, shares(*d.Grant))
		if d.Grant.ID == "" {
			by = "admit: its start would make a grant of " + shares(*d.Grant)
		}
		fmt.Fprintf(w, "%s, strength %s\n", by, d.Strength)
		if d.Throttled {
			fmt.Fprintf(w, "  launches are throttled to %d%% of the compute, strength %s, experimental\n",
				d.Grant.Compute, d.Strength)
		}
	case grant.Pass:
		fmt.Fprintln(w, "pass: it reaches no GPU")
	}
	for _, f := range d.Details {
		fmt.Fprintf(w, "  %s: %s (%s)\n", f.Vector, f.Value, f.Code)
	}
	for _, n := range d.Edits.DeviceNodes {
		fmt.Fprintf(w, "  + device %s (%s %d:%d)\n", n.Path, n.Type, n.Major, n.Minor)
	}
	for _, e := range d.Edits.Env {
		fmt.Fprintf(w, "  + env %s\n", e)
	}
	for _, r := range d.Removed {
		fmt.Fprintf(w, "  - %s\n", r)
	}
	if d.Narrow {
		fmt.Fprintf(w, "  device rules replaced by %d that leave out ungranted GPUs\n", len(d.Rules)+1)
	}
	for _, r := range d.Recorded {
		fmt.Fprintf(w, "  recorded: %s\n", r)
	}
	return nil
}
