package webhook

import (
	"context"
	"fmt"
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
}

// Ensure enters the webhooks, unless they are there.
func (r Registration) Ensure(ctx context.Context, trust []byte) error {
	mutating := r.Client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		is, err := mutating.Get(ctx, r.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		// IfNeeded: another webhook may add such names to a pod afterwards
		again := admissionregistration.IfNeededReinvocationPolicy
		fail := admissionregistration.Fail
		want := is.DeepCopy()
		want.Webhooks = []admissionregistration.MutatingWebhook{{Name: "pods.gpuledger.dev",
			ClientConfig: r.client(MutatePath, trust), Rules: rules(), FailurePolicy: &fail,
			MatchPolicy: ptr(admissionregistration.Equivalent), NamespaceSelector: r.namespaces(),
			ObjectSelector: &metav1.LabelSelector{},
			SideEffects:    ptr(admissionregistration.SideEffectClassNoneOnDryRun),
			TimeoutSeconds: ptr(int32(10)), AdmissionReviewVersions: []string{"v1"},
			ReinvocationPolicy: &again, MatchConditions: r.conditions()}}
		if equality.Semantic.DeepEqual(is.Webhooks, want.Webhooks) {
			return nil
		}
		_, err = mutating.Update(ctx, want, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("cannot enter the webhook: %w", err)
	}
	validating := r.Client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
		is, err := validating.Get(ctx, r.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		ignore := admissionregistration.Ignore
		want := is.DeepCopy()
		want.Webhooks = []admissionregistration.ValidatingWebhook{{Name: "pods.gpuledger.dev",
			ClientConfig: r.client(ValidatePath, trust), Rules: rules(), FailurePolicy: &ignore,
			MatchPolicy: ptr(admissionregistration.Equivalent), NamespaceSelector: r.namespaces(),
			ObjectSelector: &metav1.LabelSelector{},
			SideEffects:    ptr(admissionregistration.SideEffectClassNone),
			TimeoutSeconds: ptr(int32(10)), AdmissionReviewVersions: []string{"v1"},
			MatchConditions: r.conditions()}}
		if equality.Semantic.DeepEqual(is.Webhooks, want.Webhooks) {
			return nil
		}
		_, err = validating.Update(ctx, want, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("cannot enter the webhook: %w", err)
	}
	return nil
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
