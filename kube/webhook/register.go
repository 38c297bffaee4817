package webhook

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	admissionregistration "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
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
}

// Ensure enters the webhooks, unless they are there.
func (r Registration) Ensure(ctx context.Context, trust []byte) error {
	api := r.Client.AdmissionregistrationV1()
	err := fill(ctx, r.Name, api.MutatingWebhookConfigurations(),
		func(c *admissionregistration.MutatingWebhookConfiguration) bool {
			return replace(&c.Webhooks, r.mutating(trust))
		})
	if err == nil {
		err = fill(ctx, r.Name, api.ValidatingWebhookConfigurations(),
			func(c *admissionregistration.ValidatingWebhookConfiguration) bool {
				return replace(&c.Webhooks, r.validating(trust))
			})
	}
	if err != nil {
		return fmt.Errorf("cannot enter the webhook: %w", err)
	}
	return nil
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
		ClientConfig: r.client(MutatePath, trust), Rules: rules(),
		FailurePolicy: ptr(admissionregistration.Fail),
		MatchPolicy:   ptr(admissionregistration.Equivalent), NamespaceSelector: r.namespaces(),
		ObjectSelector: &metav1.LabelSelector{},
		SideEffects:    ptr(admissionregistration.SideEffectClassNoneOnDryRun),
		TimeoutSeconds: ptr(int32(10)), AdmissionReviewVersions: []string{"v1"},
		ReinvocationPolicy: ptr(admissionregistration.IfNeededReinvocationPolicy),
		MatchConditions:    r.conditions()}
}

// validating fails open: what it refuses, the scheduler and the node refuse as well.
func (r Registration) validating(trust []byte) admissionregistration.ValidatingWebhook {
	return admissionregistration.ValidatingWebhook{Name: webhookName,
		ClientConfig: r.client(ValidatePath, trust), Rules: rules(),
		FailurePolicy: ptr(admissionregistration.Ignore),
		MatchPolicy:   ptr(admissionregistration.Equivalent), NamespaceSelector: r.namespaces(),
		ObjectSelector: &metav1.LabelSelector{},
		SideEffects:    ptr(admissionregistration.SideEffectClassNone),
		TimeoutSeconds: ptr(int32(10)), AdmissionReviewVersions: []string{"v1"},
		MatchConditions: r.conditions()}
}

func ptr[T any](v T) *T { return &v }

func (r Registration) client(path string, trust []byte) admissionregistration.WebhookClientConfig {
	c := admissionregistration.WebhookClientConfig{CABundle: trust}
	if r.URL != "" {
		url := strings.TrimSuffix(r.URL, "/") + path
		c.URL = &url
		return c
	}
	c.Service = &admissionregistration.ServiceReference{Namespace: r.Namespace, Name: r.Service, Path: &path,
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

// selected reports whether condition selects a pod.
func selected(c dialect.Config, pod *corev1.Pod) bool {
	uses := func(container corev1.Container) bool { return len(c.Uses(&container)) > 0 }
	return slices.ContainsFunc(pod.Spec.Containers, uses) ||
		slices.ContainsFunc(pod.Spec.InitContainers, uses) ||
		slices.ContainsFunc(c.Annotations(), func(key string) bool {
			_, found := pod.Annotations[key]
			return found
		})
}
