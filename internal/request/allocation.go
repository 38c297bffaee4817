package request

import (
	"strconv"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// allocations reads what a scheduler says that it has allocated, in each dialect that the node
// reads.
func allocations(f *containerFacts) (all []grant.Allocation) {
	for _, dialect := range f.node.Policy.Annotations.Dialects {
		switch dialect {
		case grant.DialectGPULedger:
			all = append(all, ownDialect(f)...)
		case grant.DialectGPUShare:
			all = append(all, gpuShare(f)...)
		}
	}
	return all
}

// ownKeys are gpuledger.dev/{gpus,gpu,memory,compute,mode}, each a statement of its own about the
// allocation, and the variables by which a container asks for the same.
var ownKeys = [...]struct {
	name, env string
	read      func(*grant.Allocation, string) error
}{
	{"gpus", "GPULEDGER_GPUS", func(a *grant.Allocation, v string) (err error) {
		a.GPUs, err = gpuList(v)
		n, number := strconv.Atoi(strings.TrimSpace(v))
		a.Number = number == nil && strings.TrimSpace(v) == strconv.Itoa(n)
		return
	}},
	{"gpu", "GPULEDGER_GPU",
		func(a *grant.Allocation, v string) (err error) { a.GPUs, err = gpuList(v); return }},
	{"memory", "GPULEDGER_MEMORY",
		func(a *grant.Allocation, v string) (err error) { a.Memory, err = amount(v); return }},
	{"compute", "GPULEDGER_COMPUTE",
		func(a *grant.Allocation, v string) (err error) { a.Compute, err = percent(v); return }},
	{"mode", "GPULEDGER_MODE",
		func(a *grant.Allocation, v string) (err error) { a.Mode, err = grant.ParseMode(v); return }},
}

func ownDialect(f *containerFacts) (all []grant.Allocation) {
	for _, key := range ownKeys {
		source, value, names, is := f.keyed(prefix + key.name)
		env := false
		if !is {
			value = f.env[key.env]
			source, names, is, env = "env:"+key.env, true, value != "", true
		}
		if !is {
			continue
		}
		a := grant.Allocation{Source: source, Own: true, Env: env, Asks: names}
		if err := key.read(&a, value); err != nil {
			a.Malformed = err.Error()
		}
		all = append(all, a)
	}
	return all
}

// Names returns the annotations and environment variables by which a container names its grant, in
// all dialects: what a reference page must have.
func Names() []string {
	names := []string{grantKey, grant.ReferenceEnv, shareIndex, sharePod, shareCard, shareContainer,
		shareAllocation}
	for _, key := range ownKeys {
		names = append(names, prefix+key.name, key.env)
	}
	return names
}

// list returns the items between commas that are not empty.
func list(value string) []string {
	var items []string
	for _, item := range strings.Split(value, ",") {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, item)
		}
	}
	return items
}

func gpuList(value string) ([]string, error) {
	gpus := list(value)
	if len(gpus) != strings.Count(value, ",")+1 { // an empty name is that of a GPU left out by mistake
		return nil, &grant.UsageError{Message: "cannot read gpus " + strconv.Quote(value) +
			": want UUIDs or indexes, separated by commas"}
	}
	return gpus, nil
}

func amount(value string) (grant.Bytes, error) {
	memory, err := grant.ParseBytes(value)
	if err == nil && memory == 0 {
		err = &grant.UsageError{Message: "cannot read memory " + strconv.Quote(value) + ": want more than 0"}
	}
	return memory, err
}

func percent(value string) (int, error) {
	n, _ := strconv.Atoi(value) // 0 if it is no number, and the largest if it is too large
	if n < 1 || n > 100 {
		return 0, &grant.UsageError{Message: "cannot read compute " + strconv.Quote(value) +
			": want a percentage from 1 to 100"}
	}
	return n, nil
}
