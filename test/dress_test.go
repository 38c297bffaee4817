package test

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/test/rig"
)

// applyTo changes a spec by the row's fields.
func (r row) applyTo(t *testing.T, grants map[string]grant.Reference, spec *specs.Spec) {
	t.Helper()
	if r.Privileged {
		rig.Privileged(spec)
	}
	if r.Pod != "" {
		r.identity(spec)
	}
	if r.Grant != "" {
		rig.Annotation("gpuledger.dev/grant", grants[r.Grant].String())(spec)
	}
	rig.Env(r.Env...)(spec)
	for key, value := range r.Annotations {
		rig.Annotation(key, value)(spec)
	}
	caps := append(spec.Process.Capabilities.Bounding, r.Caps...)
	spec.Process.Capabilities = &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps}
	for _, text := range r.Devices {
		spec.Linux.Devices = append(spec.Linux.Devices, parseDevice(t, text))
	}
	if len(r.Rules) > 0 {
		spec.Linux.Resources.Devices = nil
	}
	for _, text := range r.Rules {
		spec.Linux.Resources.Devices = append(spec.Linux.Resources.Devices, parseRule(t, text))
	}
	for _, text := range r.Mounts {
		spec.Mounts = append(spec.Mounts, parseMount(text))
	}
	for _, text := range r.Hooks {
		addHook(t, spec, strings.Fields(text))
	}
}

// identity writes the pod's identity in the form of the row's engine.
func (r row) identity(spec *specs.Spec) {
	namespace, pod, uid, container := "default", "p", "", ""
	switch part := strings.Split(r.Pod, "/"); len(part) {
	case 2:
		uid, container = part[0], part[1]
	case 4:
		namespace, pod, uid, container = part[0], part[1], part[2], part[3]
	}
	keys := map[string]string{"cri.container-type": "container", "cri.sandbox-uid": uid,
		"cri.sandbox-namespace": namespace, "cri.sandbox-name": pod, "cri.container-name": container}
	if r.Engine == "cri-o" {
		keys = map[string]string{"cri-o.ContainerType": "container", "pod.uid": uid,
			"pod.namespace": namespace, "pod.name": pod, "container.name": container}
	}
	for key, value := range keys {
		rig.Annotation("io.kubernetes."+key, value)(spec)
	}
}

// parseDevice reads "PATH TYPE MAJOR:MINOR".
func parseDevice(t *testing.T, text string) specs.LinuxDevice {
	t.Helper()
	mode := os.FileMode(0o666)
	d := specs.LinuxDevice{FileMode: &mode}
	if _, err := fmt.Sscanf(text, "%s %s %d:%d", &d.Path, &d.Type, &d.Major, &d.Minor); err != nil {
		t.Fatalf("cannot read the device %q: %v", text, err)
	}
	return d
}

// parseRule reads "allow c 195:* rwm", and "deny a rwm" for all devices.
func parseRule(t *testing.T, text string) specs.LinuxDeviceCgroup {
	t.Helper()
	words := strings.Fields(text)
	r := specs.LinuxDeviceCgroup{Allow: words[0] == "allow", Access: words[len(words)-1]}
	if !r.Allow && words[0] != "deny" || len(words) < 3 || len(words) > 4 {
		t.Fatalf("cannot read the rule %q", text)
	}
	if words[1] != "-" {
		r.Type = words[1]
	}
	if len(words) == 4 {
		major, minor, _ := strings.Cut(words[2], ":")
		r.Major, r.Minor = ruleNumber(t, major), ruleNumber(t, minor)
	}
	return r
}

func ruleNumber(t *testing.T, text string) *int64 {
	t.Helper()
	if text == "*" {
		return nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	must(t, err)
	return &n
}

// parseMount reads "SOURCE DESTINATION [OPTIONS [TYPE]]".
func parseMount(text string) specs.Mount {
	words := append(strings.Fields(text), "rbind,rw", "bind")
	if len(strings.Fields(text)) > 2 {
		words = append(strings.Fields(text), "bind")
	}
	return specs.Mount{Source: words[0], Destination: words[1], Options: strings.Split(words[2], ","),
		Type: strings.TrimPrefix(words[3], "-")}
}

// addHook adds "STAGE PATH ARG...".
func addHook(t *testing.T, spec *specs.Spec, words []string) {
	t.Helper()
	if spec.Hooks == nil {
		spec.Hooks = &specs.Hooks{}
	}
	//lint:ignore SA1019 Prestart is deprecated and still what NVIDIA's toolkit writes.
	stages := map[string]*[]specs.Hook{"prestart": &spec.Hooks.Prestart,
		"createRuntime": &spec.Hooks.CreateRuntime, "createContainer": &spec.Hooks.CreateContainer,
		"startContainer": &spec.Hooks.StartContainer, "poststart": &spec.Hooks.Poststart,
		"poststop": &spec.Hooks.Poststop}
	stage := stages[words[0]]
	if stage == nil {
		t.Fatalf("no hook stage %q", words[0])
	}
	*stage = append(*stage, specs.Hook{Path: words[1], Args: words[1:], Env: []string{"PATH=/bin"}})
}

// patched merges a patch into a JSON document (RFC 7396).
func patched(t *testing.T, config []byte, patch string) []byte {
	t.Helper()
	var into, from any
	must(t, json.Unmarshal(config, &into))
	if err := json.Unmarshal([]byte(patch), &from); err != nil {
		t.Fatalf("cannot read the patch %s: %v", patch, err)
	}
	data, err := json.Marshal(merge(into, from))
	must(t, err)
	return data
}

func merge(into, from any) any {
	changes, isObject := from.(map[string]any)
	if !isObject {
		return from
	}
	object, _ := into.(map[string]any)
	if object == nil {
		object = map[string]any{}
	}
	for key, value := range changes {
		if value == nil {
			delete(object, key)
		} else {
			object[key] = merge(object[key], value)
		}
	}
	return object
}
