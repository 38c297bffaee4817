package webhook

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	admissionregistration "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"

	"github.com/gpuledger/gpuledger/kube/dialect"
)

// Registration enters the webhook into the API server. The chart makes the two configurations
// without webhooks, so that they go with it, and the process fills them: only it knows the
// certificate and the configured names.
type Registration struct {
	Client kubernetes.Interface
	Name   string // of both configurations
	// The Service of the webhook, or a URL.
	Namespace, Service string
	URL                string
	Dialect            dialect.Config
	// Exempt are namespaces whose pods are not looked at.
	Exempt []string

	entered bool // by this process
}

// Ensure enters the webhooks, unless they are there. At its start a process replaces those of a
// process with other names. Afterwards it leaves such webhooks alone: the other process was started
// later, so it has the newer names, and this one will be ended.
func (r *Registration) Ensure(ctx context.Context, trust []byte) error {
	api := r.Client.AdmissionregistrationV1()
	err := fill(ctx, r.Name, api.MutatingWebhookConfigurations(),
		func(c *admissionregistration.MutatingWebhookConfiguration) bool {
			want := r.mutating(trust)
			if len(c.Webhooks) == 1 && r.yields(c.Webhooks[0].ClientConfig, want.ClientConfig) {
				return false
			}
			return replace(&c.Webhooks, want)
		})
	if err == nil {
		err = fill(ctx, r.Name, api.ValidatingWebhookConfigurations(),
			func(c *admissionregistration.ValidatingWebhookConfiguration) bool {
				want := r.validating(trust)
				if len(c.Webhooks) == 1 && r.yields(c.Webhooks[0].ClientConfig, want.ClientConfig) {
					return false
				}
				return replace(&c.Webhooks, want)
			})
	}
	if err != nil {
		return fmt.Errorf("cannot enter the webhook: %w", err)
	}
	r.entered = true
	return nil
}

// yields reports whether a webhook is there by other names, and stays. That of an older version has
// no names in its path: it is at another place.
func (r *Registration) yields(is, want admissionregistration.WebhookClientConfig) bool {
	place, names := asked(is)
	own, ownNames := asked(want)
	return r.entered && place == own && names != ownNames
}

// asked returns where a webhook is asked, and the last part of the path.
func asked(c admissionregistration.WebhookClientConfig) (place, names string) {
	switch {
	case c.URL != nil:
		place = *c.URL
	case c.Service != nil && c.Service.Path != nil:
		place = c.Service.Namespace + "/" + c.Service.Name + *c.Service.Path
	}
	return path.Split(place)
}

// configurations are the part of a client that fill needs.
type configurations[C any] interface {
	Get(context.Context, string, metav1.GetOptions) (C, error)
	Update(context.Context, C, metav1.UpdateOptions) (C, error)
}

// fill changes a configuration, if change does that.
func fill[C any](ctx context.Context, name string, api configurations[C], change func(C) bool) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		c, err := api.Get(ctx, name, metav1.GetOptions{})
		if err != nil || !change(c) {
			return err
		}
		_, err = api.Update(ctx, c, metav1.UpdateOptions{})
		return err
	})
}

// replace sets the webhooks of a configuration, and reports whether they were others.
func replace[W any](is *[]W, want W) (changed bool) {
	changed = !equality.Semantic.DeepEqual(*is, []W{want})
	*is = []W{want}
	return changed
}

const webhookName = "pods.gpuledger.dev"

// mutating fails closed, and is asked once more after others: another webhook may add such names to
// a pod.
func (r Registration) mutating(trust []byte) admissionregistration.MutatingWebhook {
	return admissionregistration.MutatingWebhook{Name: webhookName,
		ClientConfig: r.client(MutatePath+"/"+hash(r.Dialect), trust), Rules: rules(),
		FailurePolicy: ptr(admissionregistration.Fail),
		MatchPolicy:   ptr(admissionregistration.Equivalent), NamespaceSelector: r.namespaces(),
		ObjectSelector: &metav1.LabelSelector{},
		SideEffects:    ptr(admissionregistration.SideEffectClassNone),
		TimeoutSeconds: ptr(int32(10)), AdmissionReviewVersions: []string{"v1"},
		ReinvocationPolicy: ptr(admissionregistration.IfNeededReinvocationPolicy),
		MatchConditions:    r.conditions()}
}

// validating fails open: what it refuses, the scheduler and the node refuse as well.
func (r Registration) validating(trust []byte) admissionregistration.ValidatingWebhook {
	return admissionregistration.ValidatingWebhook{Name: webhookName,
		ClientConfig: r.client(ValidatePath+"/"+hash(r.Dialect), trust), Rules: rules(),
		FailurePolicy: ptr(admissionregistration.Ignore),
		MatchPolicy:   ptr(admissionregistration.Equivalent), NamespaceSelector: r.namespaces(),
		ObjectSelector: &metav1.LabelSelector{},
		SideEffects:    ptr(admissionregistration.SideEffectClassNone),
		TimeoutSeconds: ptr(int32(10)), AdmissionReviewVersions: []string{"v1"},
		MatchConditions: r.conditions()}
}

func ptr[T any](v T) *T { return &v }

func (r Registration) client(at string, trust []byte) admissionregistration.WebhookClientConfig {
	c := admissionregistration.WebhookClientConfig{CABundle: trust}
	if r.URL != "" {
		url := strings.TrimSuffix(r.URL, "/") + at
		c.URL = &url
		return c
	}
	c.Service = &admissionregistration.ServiceReference{Namespace: r.Namespace, Name: r.Service, Path: &at,
		Port: ptr(int32(443))}
	return c
}

func rules() []admissionregistration.RuleWithOperations {
	return []admissionregistration.RuleWithOperations{{
		Operations: []admissionregistration.OperationType{admissionregistration.Create},
		Rule: admissionregistration.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"},
			Resources: []string{"pods"}, Scope: ptr(admissionregistration.NamespacedScope)}}}
}

func (r Registration) namespaces() *metav1.LabelSelector {
	if len(r.Exempt) == 0 {
		return &metav1.LabelSelector{}
	}
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
		Key: "kubernetes.io/metadata.name", Operator: metav1.LabelSelectorOpNotIn, Values: r.Exempt}}}
}

// conditions select the pods that ask for GPUs by the configured names. The API server evaluates
// them itself, so no other pod waits for the webhook, and none is refused while it does not run.
func (r Registration) conditions() []admissionregistration.MatchCondition {
	return []admissionregistration.MatchCondition{{Name: "asks-for-gpus", Expression: condition(r.Dialect)}}
}

func condition(c dialect.Config) string {
	var names []string
	for _, o := range c.Offers() {
		names = append(names, strconv.Quote(o.Name))
	}
	slices.Sort(names)
	list := "[" + strings.Join(names, ", ") + "]"
	uses := "has(c.resources) && (has(c.resources.limits) && c.resources.limits.exists(n, n in " + list +
		") || has(c.resources.requests) && c.resources.requests.exists(n, n in " + list + "))"
	any := []string{"object.spec.containers.exists(c, " + uses + ")",
		"has(object.spec.initContainers) && object.spec.initContainers.exists(c, " + uses + ")"}
	for _, key := range c.Annotations() {
		any = append(any, "has(object.metadata.annotations) && "+strconv.Quote(key)+
			" in object.metadata.annotations")
	}
	return strings.Join(any, " || ")
}

// hash is a part of the path at which the API server asks, so that it says by which names it has
// selected a pod. While the names change, it has those of one process, and asks the others as well.
func hash(c dialect.Config) string {
	sum := sha256.Sum256([]byte(condition(c)))
	return hex.EncodeToString(sum[:8])
}

// errOtherNames is the refusal of a pod that the API server has selected by other names. It has
// those of another process, which may answer the next time.
var errOtherNames = errors.New("the pod asks for GPUs by names that this process of the webhook does not " +
	"know yet, or not any more: try again")
