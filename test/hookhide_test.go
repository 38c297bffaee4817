package test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// hookHidesNothingFromAnotherInjector: NVIDIA's legacy hook, which hooks directories put into every
// container, reads from config.json what the environment requests. gpuledger's hook cannot hide it
// there.
func hookHidesNothingFromAnotherInjector(t *testing.T, runtime string) {
	n := rig.NewNode(t, rig.Setup{Runtime: runtime, Config: "[policy]\nungranted = \"hide\"\n"})
	marker := filepath.Join(n.Dir, "injected")
	injector := n.Write("nvidia-container-runtime-hook",
		"#!/bin/sh\ngrep -q NVIDIA_VISIBLE_DEVICES=all \"$BUNDLE/config.json\" && touch "+marker+"\nexit 0\n")
	must(t, os.Chmod(injector, 0o755))
	legacy := func(bundle string) rig.Edit {
		return func(s *specs.Spec) {
			s.Hooks.CreateRuntime = append(s.Hooks.CreateRuntime,
				specs.Hook{Path: injector, Args: []string{injector, "prestart"},
					Env: []string{"BUNDLE=" + bundle, "PATH=" + os.Getenv("PATH")}})
		}
	}
	asks := rig.Env("NVIDIA_VISIBLE_DEVICES=all")
	b := n.Bundle("asks", asks, rig.Shell("echo started"), n.Hooked,
		legacy(filepath.Join(n.Dir, "bundles/asks")))
	isRefusedByHook(t, b.RealRun(), grant.InjectionImpossible)
	if _, err := os.Stat(marker); err == nil {
		t.Error("the other hook injects GPUs")
	}
	for name, edits := range map[string][]rig.Edit{
		"hidden":     {asks, rig.Shell("echo started"), n.Hooked},
		"none":       {rig.Shell("echo started"), n.Hooked, legacy(filepath.Join(n.Dir, "bundles/none"))},
		"void":       {rig.Env("NVIDIA_VISIBLE_DEVICES=void"), rig.Shell("echo started"), n.Hooked, legacy(filepath.Join(n.Dir, "bundles/void"))},
		"by-wrapper": {asks, rig.Shell("echo started"), n.Hooked, legacy(filepath.Join(n.Dir, "bundles/by-wrapper"))},
	} {
		b := n.Bundle(name, edits...)
		run := b.RealRun
		if name == "by-wrapper" { // which hides it in config.json
			run = b.Run
		}
		if r := run(); r.Code != 0 || !strings.Contains(r.Stdout, "started") {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if _, err := os.Stat(marker); err == nil {
		t.Error("the other hook injects GPUs")
	}
}
