package main

import (
	"os"
	"strings"
	"testing"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/ext"
	"k8s.io/kubernetes/pkg/apis/admissionregistration"
	"sigs.k8s.io/yaml"
)

// claimsPolicy is what is asked of claims when they are made.
func claimsPolicy(t *testing.T) *admissionregistration.ValidatingAdmissionPolicy {
	t.Helper()
	return policyNamed(t, "claims.gpuledger.dev")
}

func policyNamed(t *testing.T, name string) *admissionregistration.ValidatingAdmissionPolicy {
	t.Helper()
	text, err := os.ReadFile(manifests + "dra/policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	all, err := validated(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range all {
		if p, is := o.value.(*admissionregistration.ValidatingAdmissionPolicy); is &&
			o.name == name {
			return p
		}
	}
	t.Fatalf("there is no policy %s", name)
	return nil
}

// evaluated is the value of an expression.
func evaluated(t *testing.T, expression string, given map[string]any) any {
	t.Helper()
	env, err := cel.NewEnv(cel.Variable("object", cel.DynType), cel.Variable("oldObject", cel.DynType),
		cel.Variable("request", cel.DynType),
		cel.Variable("variables", cel.DynType), ext.Strings())
	if err != nil {
		t.Fatal(err)
	}
	ast, issues := env.Compile(expression)
	if issues.Err() != nil {
		t.Fatal(issues.Err())
	}
	program, err := env.Program(ast)
	if err != nil {
		t.Fatal(err)
	}
	value, _, err := program.Eval(given)
	if err != nil {
		t.Fatalf("%s: %v", expression, err)
	}
	return value.Value()
}

// answers are the policy's to a claim, or a template of one, with these devices in YAML: "" where
// it may be made.
func answers(t *testing.T, resource, devices string) string {
	t.Helper()
	var asked any
	if err := yaml.Unmarshal([]byte(devices), &asked); err != nil {
		t.Fatal(err)
	}
	spec := map[string]any{"devices": asked}
	if resource == "resourceclaimtemplates" {
		spec = map[string]any{"spec": spec}
	}
	return judged(t, claimsPolicy(t), map[string]any{"object": map[string]any{"spec": spec},
		"request": map[string]any{"resource": map[string]any{"resource": resource}}})
}

// judged returns what a policy says against a change; "" if it may be made.
func judged(t *testing.T, p *admissionregistration.ValidatingAdmissionPolicy, given map[string]any) string {
	t.Helper()
	variables := map[string]any{}
	given["variables"] = variables
	for _, v := range p.Spec.Variables {
		variables[v.Name] = evaluated(t, v.Expression, given)
	}
	var said []string
	for _, v := range p.Spec.Validations {
		if evaluated(t, v.Expression, given) == true {
			continue
		}
		if v.Message == "" {
			v.Message = evaluated(t, v.MessageExpression, given).(string)
		}
		said = append(said, v.Message)
	}
	return strings.Join(said, "; ")
}

// A claim that the node would refuse for ever is told so when it is made, and no other one is.
func TestClaimsThatAreRefusedWhenTheyAreMade(t *testing.T) {
	const (
		distinct = `, constraints: [{distinctAttribute: gpuledger.dev/uuid}]`
		same     = `, constraints: [{matchAttribute: gpuledger.dev/uuid}]`
		twice    = "several shares of GPUs need the constraint"
		together = "a GPU has one MPS daemon"
		amount   = ", capacity: {requests: {memory: 40Gi}}"
		partly   = `select by device.capacity["gpuledger.dev"].memory.compareTo(quantity("40Gi")) >= 0`
	)
	one := func(class, more string) string {
		return `{name: a, exactly: {deviceClassName: ` + class + `.gpuledger.dev` + more + `}}`
	}
	first := func(class, more string) string {
		return `{name: a, firstAvailable: [{name: x, deviceClassName: exclusive.gpuledger.dev}, {name: y, ` +
			`deviceClassName: ` + class + `.gpuledger.dev` + more + `}]}`
	}
	mps2 := one("mps", "") + `, {name: b, exactly: {deviceClassName: mps.gpuledger.dev}}`
	oneGrant := func(of string) string {
		return `, config: [{opaque: {driver: other.example.com, parameters: {}}}, {` + of +
			`opaque: {driver: gpuledger.dev, parameters: {apiVersion: gpuledger.dev/v1, ` +
			`kind: GrantConfig, grant: claim}}}]`
	}
	for name, c := range map[string]struct{ devices, want string }{
		"nothing":                         {`{}`, ""},
		"another driver's":                {`{requests: [{name: a, exactly: {deviceClassName: gpu.nvidia.com, count: 2}}]}`, ""},
		"a share":                         {`{requests: [` + one("limit", ", count: 1") + `]}`, ""},
		"whole GPUs":                      {`{requests: [` + one("exclusive", ", count: 2") + `]}`, ""},
		"shares of several GPUs":          {`{requests: [` + one("limit", ", count: 2") + `]` + distinct + `}`, ""},
		"several shares":                  {`{requests: [` + one("limit", ", count: 2") + `]}`, twice},
		"several shares, or whole GPUs":   {`{requests: [` + first("limit", ", count: 2") + `]}`, twice},
		"two modes":                       {`{requests: [` + one("limit", "") + `, ` + one("exclusive", "") + `]}`, ""},
		"a share of mps":                  {`{requests: [` + one("mps", ", count: 1, allocationMode: ExactCount") + `]}`, ""},
		"one of several alternatives":     {`{requests: [` + first("mps", ", count: 1") + `]}`, ""},
		"several GPUs of mps":             {`{requests: [` + one("mps", ", count: 2") + `]` + distinct + `}`, together},
		"all GPUs of mps":                 {`{requests: [` + one("mps", ", allocationMode: All") + `]}`, together},
		"several GPUs of mps, or another": {`{requests: [` + first("mps", ", count: 2") + `]` + distinct + `}`, together},
		"all GPUs of mps, or another":     {`{requests: [` + first("mps", ", allocationMode: All") + `]}`, together},
		"two requests for mps":            {`{requests: [` + mps2 + `]}`, ""},
		"two in one grant":                {`{requests: [` + mps2 + `]` + oneGrant("") + `}`, together},
		"two in one grant by their names": {`{requests: [` + mps2 + `]` + oneGrant("requests: [a, b], ") + `}`, together},
		"one of two in one grant":         {`{requests: [` + mps2 + `]` + oneGrant("requests: [b], ") + `}`, ""},
		"two in one grant on one GPU":     {`{requests: [` + mps2 + `]` + same + oneGrant("") + `}`, ""},
		"parameters of another driver":    {`{requests: [` + mps2 + `]` + strings.ReplaceAll(oneGrant(""), "gpuledger.dev", "example.com") + `}`, ""},
		"the scheduler's own claim":       {`{requests: [` + one("exclusive", ", count: 1, allocationMode: ExactCount") + `, {name: b, exactly: {deviceClassName: exclusive.gpuledger.dev, count: 2, allocationMode: ExactCount}}]}`, ""},
		"whole GPUs of an amount":         {`{requests: [` + one("exclusive", amount) + `]}`, partly},
		"a share of an amount":            {`{requests: [` + one("limit", amount) + `]}`, ""},
		"that, or a share":                {`{requests: [{name: a, firstAvailable: [{name: x, deviceClassName: exclusive.gpuledger.dev` + amount + `}]}]}`, partly},
		"whole, or a share of an amount":  {`{requests: [` + first("limit", amount) + `]}`, ""},
	} {
		for _, resource := range []string{"resourceclaims", "resourceclaimtemplates"} {
			t.Run(name+"/"+resource, func(t *testing.T) {
				got := answers(t, resource, c.devices)
				if c.want == "" && got != "" || !strings.Contains(got, c.want) {
					t.Errorf("got %q, want %q", got, c.want)
				}
			})
		}
	}
}

// A driver writes the status of its own devices on its own node, and nothing else of a claim.
func TestADriverWritesTheStatusOfItsDevices(t *testing.T) {
	const (
		allocated = `allocation: {devices: {results: [{driver: gpuledger.dev, pool: a, device: x}]}}`
		pod       = `, reservedFor: [{resource: pods, name: one, uid: u}]`
		nic       = `{driver: nic.example.com, pool: a, device: n}`
		own       = `{driver: gpuledger.dev, pool: a, device: x}`
		elsewhere = `{driver: gpuledger.dev, pool: b, device: x}`
		before    = allocated + pod + `, devices: [` + nic + `]`
		mayNot    = "may not change what a claim is allocated"
		others    = "node a may change only the status of its own devices"
	)
	p := policyNamed(t, "status.gpuledger.dev")
	for name, c := range map[string]struct{ from, to, want string }{
		"its own":            {before, allocated + pod + `, devices: [` + nic + `, ` + own + `]`, ""},
		"the first":          {allocated + pod, allocated + pod + `, devices: [` + own + `]`, ""},
		"away":               {allocated + `, devices: [` + own + `]`, allocated, ""},
		"another node's":     {before, allocated + pod + `, devices: [` + nic + `, ` + elsewhere + `]`, others},
		"another driver's":   {before, allocated + pod + `, devices: [{driver: nic.example.com, pool: a, device: m}]`, others},
		"another's away":     {before, allocated + pod, others},
		"another allocation": {before, strings.Replace(before, "device: x", "device: y", 1), mayNot},
		"another pod":        {before, strings.Replace(before, "name: one", "name: two", 1), mayNot},
		"no pod":             {before, allocated + `, devices: [` + nic + `]`, mayNot},
		"not allocated":      {`reservedFor: []`, allocated, mayNot},
	} {
		t.Run(name, func(t *testing.T) {
			object := func(status string) (o any) {
				if err := yaml.Unmarshal([]byte(`{status: {`+status+`}}`), &o); err != nil {
					t.Fatal(err)
				}
				return o
			}
			given := map[string]any{"oldObject": object(c.from), "object": object(c.to),
				"request": map[string]any{"userInfo": map[string]any{"extra": map[string]any{
					"authentication.kubernetes.io/node-name": []any{"a"}}}}}
			if said := judged(t, p, given); !strings.Contains(said, c.want) || c.want == "" && said != "" {
				t.Errorf("got %q, want %q", said, c.want)
			}
		})
	}
}
