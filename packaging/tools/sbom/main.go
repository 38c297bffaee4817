// Command sbom prints a bill of materials, in CycloneDX's JSON, of the tree that is packed: every
// file with its SHA-256, and of the Go programs every module that is linked into them, as the
// programs themselves say (what `go version -m` shows). It takes no time but the one it is given,
// and sorts, so that two runs print the same bytes.
package main

import (
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

func main() {
	name := flag.String("name", "", "what the tree is called")
	version := flag.String("version", "", "its version")
	seconds := flag.Int64("time", 0, "when it was made, in seconds since 1970")
	root := flag.String("root", "", "the tree")
	flag.Parse()
	bom, err := materials(*root, cdx.Component{BOMRef: *name, Type: cdx.ComponentTypeApplication,
		Name: *name, Version: *version,
		Licenses: &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}}})
	if err == nil {
		bom.Metadata.Timestamp = time.Unix(*seconds, 0).UTC().Format(time.RFC3339)
		err = cdx.NewBOMEncoder(os.Stdout, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom,
			cdx.SpecVersion1_6)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

// materials are the files below root, and the modules in them.
func materials(root string, whole cdx.Component) (*cdx.BOM, error) {
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{Component: &whole}
	modules := map[string]cdx.Component{}
	var files []cdx.Component
	var uses []cdx.Dependency
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		file, err := fileComponent(path, "/"+strings.TrimPrefix(strings.TrimPrefix(path, root), "/"))
		if err != nil {
			return err
		}
		files = append(files, file)
		if linked := linkedInto(path); len(linked) > 0 {
			uses = append(uses, dependency(file.BOMRef, linked))
			for _, m := range linked {
				modules[m.BOMRef] = m
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	components := append(files, sorted(modules)...)
	uses = append([]cdx.Dependency{dependency(whole.BOMRef, files)}, uses...)
	bom.Components, bom.Dependencies = &components, &uses
	return bom, nil
}

func fileComponent(path, name string) (cdx.Component, error) {
	file, err := os.Open(path)
	if err != nil {
		return cdx.Component{}, err
	}
	defer file.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, file); err != nil {
		return cdx.Component{}, err
	}
	return cdx.Component{BOMRef: "file:" + name, Type: cdx.ComponentTypeFile, Name: name,
		Hashes: &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(sum.Sum(nil))}}}, nil
}

// linkedInto are the modules of a Go program and the Go release that linked it; none of any other
// file.
func linkedInto(path string) []cdx.Component {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return nil
	}
	linked := []cdx.Component{{BOMRef: "pkg:golang/std@" + info.GoVersion,
		Type: cdx.ComponentTypeLibrary, Name: "std",
		Version: info.GoVersion, PackageURL: "pkg:golang/std@" + strings.TrimPrefix(info.GoVersion, "go")}}
	for _, m := range info.Deps {
		linked = append(linked, moduleComponent(m))
	}
	return linked
}

func moduleComponent(m *debug.Module) cdx.Component {
	if m.Replace != nil {
		m = m.Replace
	}
	url := "pkg:golang/" + m.Path + "@" + m.Version
	return cdx.Component{BOMRef: url, Type: cdx.ComponentTypeLibrary, Name: m.Path,
		Version: m.Version, PackageURL: url,
		Properties: &[]cdx.Property{{Name: "go.sum", Value: m.Sum}}}
}

func dependency(ref string, on []cdx.Component) cdx.Dependency {
	refs := make([]string, 0, len(on))
	for _, c := range on {
		refs = append(refs, c.BOMRef)
	}
	slices.Sort(refs)
	return cdx.Dependency{Ref: ref, Dependencies: &refs}
}

func sorted(modules map[string]cdx.Component) []cdx.Component {
	all := make([]cdx.Component, 0, len(modules))
	for _, m := range modules {
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b cdx.Component) int { return cmp.Compare(a.BOMRef, b.BOMRef) })
	return all
}
