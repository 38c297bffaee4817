package test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/internal/request"
	"github.com/gpuledger/gpuledger/test/rig"
	"github.com/gpuledger/gpuledger/test/transcript"
)

// TestEveryRefusalIsExplained compares docs/refusals.md with the closed list, in its order: if
// several codes apply, the first is reported.
func TestEveryRefusalIsExplained(t *testing.T) {
	text, err := os.ReadFile("../docs/refusals.md")
	if err != nil {
		t.Fatal(err)
	}
	var sections []string
	for _, section := range strings.Split(string(text), "\n## `")[1:] {
		name, body, _ := strings.Cut(section, "`\n")
		sections = append(sections, name)
		for _, part := range []string{"**Cause.** ", "**Example.** ", "**What to do.** "} {
			if strings.Count(body, part) != 1 {
				t.Errorf("docs/refusals.md, %s: want %q once", name, strings.TrimSpace(part))
			}
		}
	}
	var codes []string
	for _, code := range grant.Codes {
		codes = append(codes, string(code))
	}
	if got, want := strings.Join(sections, " "), strings.Join(codes, " "); got != want {
		t.Errorf("docs/refusals.md explains\n%s\nbut the codes are\n%s", got, want)
	}
}

// TestHintsForTenantsAreURLs: a refused tenant sees a pod's event, and has none of gpuledger's
// files. The named pages exist.
func TestHintsForTenantsAreURLs(t *testing.T) {
	pages := 0
	for _, dir := range []string{"../internal/admission", "../internal/node", "../internal/nri",
		"../runtime", "../hook"} {
		files, err := filepath.Glob(dir + "/*.go")
		must(t, err)
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
			must(t, err)
			ast.Inspect(file, func(n ast.Node) bool {
				text, isText := n.(*ast.BasicLit)
				if isText && strings.Contains(text.Value, "docs/") {
					t.Errorf("%s has a file of the sources in a text: %s; grant.Docs is an address", dir,
						text.Value)
				}
				sum, isSum := n.(*ast.BinaryExpr)
				if !isSum {
					return true
				}
				text, isText = sum.Y.(*ast.BasicLit)
				if page := pageName.FindString(fmt.Sprint(text)); isText &&
					strings.HasSuffix(types.ExprString(sum.X), "grant.Docs") {
					pages++
					if _, err := os.Stat("../docs/" + page); err != nil || page == "" {
						t.Errorf("%s names a page that is not there: %s", dir, text.Value)
					}
				}
				return true
			})
		}
	}
	if pages < 5 {
		t.Errorf("%d pages are named", pages)
	}
}

var pageName = regexp.MustCompile(`[a-z-]+\.md`)

// TestEveryKeyIsDocumented compares docs/configuration.md with the configuration: each key that can
// be set has a row, with the default in configs/config.toml, and there are no other rows.
func TestEveryKeyIsDocumented(t *testing.T) {
	documented := map[string]string{}
	for _, row := range keyRow.FindAllStringSubmatch(read(t, "../docs/configuration.md"), -1) {
		if _, twice := documented[row[1]]; twice {
			t.Errorf("docs/configuration.md has %s twice", row[1])
		}
		documented[row[1]] = strings.Trim(row[2], "`")
	}
	defaults := shownDefaults(read(t, "../configs/config.toml"))
	for _, key := range keysOf(reflect.TypeFor[grant.Policy](), "") {
		value, found := documented[key]
		if !found {
			t.Errorf("docs/configuration.md has no row for %s", key)
		} else if shown, set := defaults[key]; set && shown != value {
			t.Errorf("docs/configuration.md has for %s the default %s; it is %s", key, value, shown)
		}
		delete(documented, key)
	}
	for key := range documented {
		t.Errorf("docs/configuration.md explains %s, which is no key", key)
	}
}

// keyRow is a row of a table whose first cell is a key: its name and its default.
var keyRow = regexp.MustCompile("(?m)^\\| `([a-z_.]+)` \\| ([^|]+) \\|")

// TestEveryAnnotationIsDocumented compares the table of docs/requesting.md with what package
// request reads.
func TestEveryAnnotationIsDocumented(t *testing.T) {
	documented := map[string]bool{}
	for _, row := range annotationRow.FindAllStringSubmatch(read(t, "../docs/requesting.md"), -1) {
		documented[row[1]] = true
	}
	for _, name := range request.Names() {
		if !documented[name] {
			t.Errorf("docs/requesting.md has no row for %s", name)
		}
		delete(documented, name)
	}
	for name := range documented {
		t.Errorf("docs/requesting.md explains %s, which no program reads", name)
	}
}

// annotationRow is a row whose first cell is an annotation or a variable of a container.
var annotationRow = regexp.MustCompile("(?m)^\\| (?:env )?`([A-Z]+_[A-Z_]+|[a-z]+\\.[a-z./]+)` \\|")

// keysOf are the keys that a configuration of this type can set, with their tables.
func keysOf(table reflect.Type, name string) (keys []string) {
	for i := range table.NumField() {
		field := table.Field(i)
		tag := field.Tag.Get("toml")
		if tag == "-" {
			continue // no key sets it
		}
		key := name + tag
		kind := field.Type
		for kind.Kind() == reflect.Slice {
			kind = kind.Elem()
		}
		if kind.Kind() == reflect.Struct {
			keys = append(keys, keysOf(kind, key+".")...)
		} else {
			keys = append(keys, key)
		}
	}
	return keys
}

// shownDefaults are the keys that a configuration file sets, as they are written there.
func shownDefaults(file string) map[string]string {
	defaults, table := map[string]string{}, ""
	for line := range strings.Lines(file) {
		line, _, _ = strings.Cut(line, " #")
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			table = strings.Trim(line, "[]") + "."
		} else if key, value, set := strings.Cut(line, "="); set && line[0] != '#' {
			defaults[table+strings.TrimSpace(key)] = strings.TrimSpace(value)
		}
	}
	return defaults
}

// TestManualsNameEveryStage: the hook's page is not made from its help, so it is compared with it.
func TestManualsNameEveryStage(t *testing.T) {
	page := read(t, "../docs/man/gpuledger-hook.md")
	help := rig.Run(exec.Command(rig.Binary(t, "gpuledger-hook"), "--help"))
	stages := regexp.MustCompile(`(createRuntime|prestart|precreate|poststop)`).FindAllString(help.Stdout+
		help.Stderr, -1)
	if len(stages) < 4 {
		t.Fatalf("the help names %v: %+v", stages, help)
	}
	for _, stage := range stages {
		if !strings.Contains(page, "`"+stage+"`") {
			t.Errorf("docs/man/gpuledger-hook.md does not name %s", stage)
		}
	}
}

// TestReadmesCommandsAreInInstall: `make test-packages` runs the commands of docs/install.md, so
// each command that the README shows for a node must be one of that page's. No engine takes more
// than five commands, and Docker, which is not run there, takes those of containerd.
func TestReadmesCommandsAreInInstall(t *testing.T) {
	readme, page := read(t, "../README.md"), read(t, "../docs/install.md")
	ofEngine := map[string][]string{}
	typed := map[string]bool{}
	for _, section := range []string{"containerd", "CRI-O", "Podman", "Docker", "A container's share",
		"A pod's share", "Remove"} {
		steps := transcript.Steps(page, section)
		if len(steps) == 0 {
			t.Errorf("docs/install.md has no commands in %q", section)
		}
		for _, s := range steps {
			typed[s.Command] = true
			ofEngine[section] = append(ofEngine[section], s.Command)
		}
	}
	for _, engine := range []string{"containerd", "CRI-O", "Podman"} {
		if len(ofEngine[engine]) > 5 {
			t.Errorf("docs/install.md has %d commands for %s", len(ofEngine[engine]), engine)
		}
	}
	if docker := strings.ReplaceAll(strings.Join(ofEngine["containerd"], "\n"), "containerd",
		"docker"); !strings.HasPrefix(strings.Join(ofEngine["Docker"], "\n"), docker) {
		t.Errorf("docs/install.md has for Docker\n%q\nand for containerd\n%q", ofEngine["Docker"],
			ofEngine["containerd"])
	}
	shown := transcript.Steps(readme, "Install")
	for _, s := range shown {
		command, _, _ := strings.Cut(s.Command, "  # ")
		if command = strings.TrimSpace(command); !typed[command] {
			t.Errorf("the README shows a command that is not in docs/install.md: %s", command)
		}
	}
	if len(shown) < 4 {
		t.Errorf("the README shows %d commands only", len(shown))
	}
}

// TestManifestsAreExamples: what these pages show of a claim or a pod is part of an example's
// manifest.
func TestManifestsAreExamples(t *testing.T) {
	var manifests strings.Builder
	examples, err := filepath.Glob("../kube/manifests/examples/*.yaml")
	must(t, err)
	for _, name := range examples {
		manifests.WriteString(read(t, name))
	}
	for _, name := range []string{"docs/kubernetes-quickstart.md", "docs/kubernetes.md",
		"docs/requesting.md"} {
		parts := strings.Split(read(t, "../"+name), "```yaml\n")[1:]
		if len(parts) == 0 {
			t.Errorf("%s shows no manifest", name)
		}
		for _, part := range parts {
			shown, _, _ := strings.Cut(part, "```")
			if !strings.Contains(manifests.String(), shown) {
				t.Errorf("%s shows a manifest that is not in kube/manifests/examples:\n%s", name, shown)
			}
		}
	}
}

// TestManualAgreesWithHelp: gpuledger(8) has every command, its description and its options.
func TestManualAgreesWithHelp(t *testing.T) {
	program := rig.Binary(t, "gpuledger")
	help := func(args ...string) string {
		return rig.Run(exec.Command(program, append(args, "--help")...)).Stdout
	}
	page := letters(rig.Run(exec.Command(program, "man")).Stdout)
	compared := 0
	var compare func(path []string)
	compare = func(path []string) {
		text := help(path...)
		for _, part := range []string{"DESCRIPTION", "OPTIONS"} {
			for line := range strings.Lines(under(text, part)) {
				compared++
				line, _, _ = strings.Cut(line, "(default") // which the page formats differently
				if option, _, is := strings.Cut(strings.TrimSpace(line), "  "); is &&
					strings.HasPrefix(option, "-") {
					line = strings.Fields(option)[0]
				}
				if !strings.Contains(page, letters(line)) {
					t.Errorf("gpuledger(8) does not have %q for %v", strings.TrimSpace(line), path)
				}
			}
		}
		for line := range strings.Lines(under(text, "COMMANDS")) {
			compare(append(slices.Clone(path), strings.Trim(strings.Fields(line)[0], ",")))
		}
	}
	compare(nil)
	if compared < 100 {
		t.Errorf("only %d lines of help were compared", compared)
	}
}

// under is the text below a heading of a help text.
func under(help, heading string) string {
	_, text, _ := strings.Cut(help, heading+":\n")
	text, _, _ = strings.Cut(text, "\n\n")
	return text
}

// letters are what is left of a text without its typesetting.
func letters(text string) string {
	text = regexp.MustCompile(`\\f[A-Z]`).ReplaceAllString(text, "")
	return regexp.MustCompile(`[^A-Za-z0-9]+`).ReplaceAllString(text, "")
}

// link is a relative link of Markdown.
var link = regexp.MustCompile(`\]\(([^):#]+)(#[^)]*)?\)`)

func TestDocumentsLinkToExistingFiles(t *testing.T) {
	documents, err := filepath.Glob("../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	decisions, _ := filepath.Glob("../docs/adr/*.md")
	linked := map[string]bool{}
	for _, document := range append(append(documents, decisions...), "../README.md", "../CHANGELOG.md",
		"../CONTRIBUTING.md") {
		for _, found := range link.FindAllStringSubmatch(read(t, document), -1) {
			target := filepath.Join(filepath.Dir(document), found[1])
			linked[target] = linked[target] || target != filepath.Clean(document)
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: %v", document, err)
			}
		}
	}
	for _, page := range append(documents, decisions...) {
		if !linked[page] && filepath.Base(page) != "README.md" {
			t.Errorf("no page leads to %s", page)
		}
	}
}

// TestSuitesNameExistingTests: docs/suites.md names tests of ours as FILE:TEST, and rows of the
// test of a cluster.
func TestSuitesNameExistingTests(t *testing.T) {
	page, cluster := read(t, "../docs/suites.md"), read(t, "e2e/cluster_test.go")
	ours := regexp.MustCompile("`((?:test|kube|internal|hook)/[a-z0-9_/-]+_test\\.go)(:Test\\w+)?`")
	named := ours.FindAllStringSubmatch(page, -1)
	for _, name := range named {
		file, test := read(t, "../"+name[1]), strings.TrimPrefix(name[2], ":")
		if !strings.Contains(file, "func "+test) {
			t.Errorf("docs/suites.md names %s, which is not in %s", test, name[1])
		}
	}
	rows := regexp.MustCompile(`row ("[^"]+")`).FindAllStringSubmatch(page, -1)
	for _, row := range rows {
		if !strings.Contains(cluster, "{"+row[1]+",") {
			t.Errorf("docs/suites.md names the row %s, which test/e2e/cluster_test.go does not have", row[1])
		}
	}
	if len(named) < 60 || len(rows) < 8 {
		t.Errorf("only %d tests and %d rows were looked for", len(named), len(rows))
	}
}

// TestLinksLeadToHeadings: a link with an anchor leads to a heading of that page, as GitHub names
// its headings.
func TestLinksLeadToHeadings(t *testing.T) {
	var pages []string
	for _, pattern := range []string{"../*.md", "../docs/*.md", "../docs/adr/*.md",
		"../packaging/kubernetes/*.md"} {
		found, err := filepath.Glob(pattern)
		must(t, err)
		pages = append(pages, found...)
	}
	anchored, checked := regexp.MustCompile(`\]\(([^):#]*)#([^)]+)\)`), 0
	for _, page := range pages {
		for _, found := range anchored.FindAllStringSubmatch(read(t, page), -1) {
			target := page
			if found[1] != "" {
				target = filepath.Join(filepath.Dir(page), found[1])
			}
			checked++
			if !slices.Contains(headings(read(t, target)), found[2]) {
				t.Errorf("%s links to %s#%s, and there is no such heading", page, target, found[2])
			}
		}
	}
	if checked < 30 {
		t.Errorf("only %d links were checked", checked)
	}
}

// headings are the anchors of a page's headings.
func headings(page string) (anchors []string) {
	inBlock := false
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "```") {
			inBlock = !inBlock
		}
		if title := strings.TrimLeft(line, "#"); title != line && !inBlock {
			title = regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(
				strings.ToLower(strings.TrimSpace(title)), "")
			anchors = append(anchors, strings.ReplaceAll(title, " ", "-"))
		}
	}
	return anchors
}
