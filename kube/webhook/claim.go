package webhook

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/kube/placement"
)

// SharedClass is the DeviceClass of shares in the mode that the node's GPUs have.
const SharedClass = "shared.gpuledger.dev"

// MadeBy is the label of the templates that the webhook makes, and its value.
const (
	MadeBy  = "gpuledger.dev/made-by"
	Webhook = "webhook"
)

// template returns the template of the claim that gives a container what it asks for. Its name has
// a hash of its content, so equal demands share a template, and a template never changes.
func template(namespace string, d placement.Demand, w placement.Wish,
	partOf grant.Bytes) (*resourceapi.ResourceClaimTemplate, error) {
	r, err := request(d, w, partOf)
	if err != nil {
		return nil, err
	}
	spec := resourceapi.ResourceClaimTemplateSpec{Spec: resourceapi.ResourceClaimSpec{
		Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "gpu", Exactly: r}}}}}
	if d.GPUs > 1 && d.Mode != grant.Exclusive {
		// else the scheduler may take one GPU twice
		uuid := resourceapi.FullyQualifiedName("gpuledger.dev/uuid")
		spec.Spec.Devices.Constraints = []resourceapi.DeviceConstraint{{DistinctAttribute: &uuid}}
		if d.Mode == "" { // a grant has one mode
			mode := resourceapi.FullyQualifiedName("gpuledger.dev/mode")
			spec.Spec.Devices.Constraints = append(spec.Spec.Devices.Constraints,
				resourceapi.DeviceConstraint{MatchAttribute: &mode})
		}
	}
	text, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	hash := sha256.Sum256(text)
	return &resourceapi.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace,
			Name:   describe(r) + "-" + hex.EncodeToString(hash[:4]),
			Labels: map[string]string{MadeBy: Webhook}},
		Spec: spec}, nil
}

// request returns the request for a demand. The error says what a claim cannot have.
func request(d placement.Demand, w placement.Wish,
	partOf grant.Bytes) (*resourceapi.ExactDeviceRequest, error) {
	r := &resourceapi.ExactDeviceRequest{DeviceClassName: SharedClass,
		AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: int64(d.GPUs)}
	if d.Mode != "" {
		r.DeviceClassName = string(d.Mode) + ".gpuledger.dev"
	}
	memory := d.Memory
	switch {
	case w.App != "" && d.Mode != grant.Exclusive:
		return nil, errors.New("its replicas are to be on different GPUs, and the cluster's scheduler " +
			"cannot keep claims of several pods apart")
	case w.Policy == placement.Spread:
		return nil, errors.New("it is to be spread, and the cluster's scheduler takes the first GPU that " +
			"fits a claim")
	case d.GPUs > 1 && d.Mode == grant.MPS:
		return nil, errors.New("it asks for shares of several GPUs in mode mps, and the scheduler does not " +
			"know which GPUs one MPS daemon can serve together")
	case d.Part > 0 && partOf == 0:
		return nil, fmt.Errorf("it asks for %s of a GPU, and a claim names an amount of memory: ask for an "+
			"amount, or let an administrator set part_of, the memory that a GPU has to give", parts(d.Part))
	case d.Part > 0:
		memory = partOf / grant.MiB * grant.Bytes(d.Part) / 1000 * grant.MiB
	}
	if d.GPUs > resourceapi.AllocationResultsMaxSize {
		return nil, fmt.Errorf("it asks for %d GPUs, and a claim has %d at most", d.GPUs,
			resourceapi.AllocationResultsMaxSize)
	}
	if memory > 0 || d.Compute > 0 {
		r.Capacity = &resourceapi.CapacityRequirements{
			Requests: map[resourceapi.QualifiedName]resource.Quantity{}}
	}
	if memory > 0 {
		r.Capacity.Requests["memory"] = *resource.NewQuantity(int64(memory), resource.BinarySI)
	}
	if d.Compute > 0 {
		r.Capacity.Requests["compute"] = *resource.NewQuantity(int64(d.Compute), resource.DecimalSI)
	}
	expressions, err := selectors(d, w)
	for _, e := range expressions {
		r.Selectors = append(r.Selectors,
			resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: e}})
	}
	return r, err
}

func parts(thousandths int) string {
	if thousandths%10 == 0 {
		return fmt.Sprintf("%d%%", thousandths/10)
	}
	return fmt.Sprintf("%d.%d%%", thousandths/10, thousandths%10)
}

// selectors returns which GPUs the pod can use, as expressions in CEL.
func selectors(d placement.Demand, w placement.Wish) (all []string, err error) {
	if d.GPUs > 1 && d.Mode == "" {
		all = append(all, `device.attributes["gpuledger.dev"].mode != "mps"`)
	}
	if w.AtLeast > 0 {
		// a driver of an older version publishes only what the GPU has to give
		all = append(all, fmt.Sprintf(`"memoryTotal" in device.attributes["gpuledger.dev"] ? `+
			`device.attributes["gpuledger.dev"].memoryTotal >= %[1]d : `+
			`device.capacity["gpuledger.dev"].memory.compareTo(quantity("%[1]d")) >= 0`,
			min(uint64(w.AtLeast), math.MaxInt64)))
	}
	var products []string
	for _, p := range w.Products {
		// the text becomes a part of an expression
		if strings.ContainsFunc(p, func(r rune) bool { return r < ' ' || r > '~' || r == '"' || r == '\\' }) {
			return nil, fmt.Errorf("it selects the product %q, and the name of a product has no such "+
				"character", grant.Printable(p))
		}
		products = append(products,
			fmt.Sprintf(`device.attributes["gpuledger.dev"].product.lowerAscii().contains("%s")`,
				strings.ToLower(p)))
	}
	if products != nil {
		one := `"product" in device.attributes["gpuledger.dev"] && (` + strings.Join(products, " || ") + ")"
		if len(one) > resourceapi.CELSelectorExpressionMaxLength {
			return nil, errors.New("it selects products by longer names than a claim can have")
		}
		all = append(all, one)
	}
	return all, nil
}

// describe returns the beginning of a template's name: gpuledger-limit-4gi-x2.
func describe(r *resourceapi.ExactDeviceRequest) string {
	class, _, _ := strings.Cut(r.DeviceClassName, ".")
	words := []string{"gpuledger", class}
	if r.Capacity != nil {
		if memory, is := r.Capacity.Requests["memory"]; is {
			words = append(words, strings.ToLower(memory.String()))
		}
		if percent, is := r.Capacity.Requests["compute"]; is {
			words = append(words, percent.String()+"pc")
		}
	}
	if r.Count > 1 {
		words = append(words, fmt.Sprintf("x%d", r.Count))
	}
	return strings.Join(words, "-")
}
