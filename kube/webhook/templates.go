package webhook

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// Used is the annotation of a template with a time at which a new pod named it.
const Used = "gpuledger.dev/used"

// A template is collected when no pod has named it for collectAfter. A new pod renews its time if
// that is older than renewAfter. A pod that is created after the collector has listed the pods so
// changes the template's version, and then it is not deleted, or the pod's is made again.
const (
	renewAfter   = 5 * time.Minute
	collectAfter = 15 * time.Minute
)

// Templates makes and collects the templates of claims.
type Templates struct {
	Client kubernetes.Interface
	Now    func() time.Time
}

// make makes a template unless it exists.
func (t Templates) make(ctx context.Context, want *resourceapi.ResourceClaimTemplate) error {
	all := t.Client.ResourceV1().ResourceClaimTemplates(want.Namespace)
	// twice: another process may have collected or made it meanwhile
	for range 2 {
		is, err := all.Get(ctx, want.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			want = want.DeepCopy()
			want.Annotations = map[string]string{Used: t.Now().UTC().Format(time.RFC3339)}
			if _, err = all.Create(ctx, want, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
				continue
			}
			return notMade(want, err)
		}
		if err != nil {
			return notMade(want, err)
		}
		if is.Labels[MadeBy] != Webhook || !equality.Semantic.DeepEqual(is.Spec, want.Spec) {
			return fmt.Errorf("the ResourceClaimTemplate %s of the namespace is not what gpuledger makes: "+
				"delete it", want.Name)
		}
		if is.DeletionTimestamp != nil || t.Now().Sub(lastUsed(is)) > renewAfter {
			is.Annotations = map[string]string{Used: t.Now().UTC().Format(time.RFC3339)}
			// a conflict says that another process has renewed it, or that it was collected
			if _, err := all.Update(ctx, is, metav1.UpdateOptions{}); apierrors.IsConflict(err) ||
				apierrors.IsNotFound(err) {
				continue
			} else if err != nil {
				return notMade(want, err)
			}
		}
		return nil
	}
	return notMade(want, errors.New("it is made and collected at the same time: try again"))
}

func notMade(t *resourceapi.ResourceClaimTemplate, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("cannot make the ResourceClaimTemplate %s: %w", t.Name, err)
}

func lastUsed(t *resourceapi.ResourceClaimTemplate) time.Time {
	at, err := time.Parse(time.RFC3339, t.Annotations[Used])
	if err != nil {
		return t.CreationTimestamp.Time
	}
	return at
}

// Collect deletes the templates that no pod names any more. The claims that were made from them do
// not need them.
func (t Templates) Collect(ctx context.Context) error {
	made, err := t.Client.ResourceV1().ResourceClaimTemplates("").List(ctx,
		metav1.ListOptions{LabelSelector: MadeBy + "=" + Webhook})
	if err != nil {
		return fmt.Errorf("cannot list the templates of claims: %w", err)
	}
	old := map[string][]resourceapi.ResourceClaimTemplate{}
	for _, one := range made.Items {
		if t.Now().Sub(lastUsed(&one)) > collectAfter {
			old[one.Namespace] = append(old[one.Namespace], one)
		}
	}
	var all error
	for namespace, templates := range old {
		pods, err := t.Client.CoreV1().Pods(namespace).List(ctx,
			metav1.ListOptions{FieldSelector: "status.phase!=Succeeded,status.phase!=Failed"})
		if err != nil {
			all = errors.Join(all, fmt.Errorf("cannot list the pods of namespace %s: %w", namespace, err))
			continue
		}
		for i := range templates {
			if !slices.ContainsFunc(pods.Items,
				func(pod corev1.Pod) bool { return namesTemplate(&pod, templates[i].Name) }) {
				all = errors.Join(all, t.remove(ctx, &templates[i]))
			}
		}
	}
	return all
}

func (t Templates) remove(ctx context.Context, one *resourceapi.ResourceClaimTemplate) error {
	err := t.Client.ResourceV1().ResourceClaimTemplates(one.Namespace).Delete(ctx, one.Name,
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &one.UID,
			ResourceVersion: &one.ResourceVersion}})
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return fmt.Errorf("cannot delete the template %s/%s: %w", one.Namespace, grant.Printable(one.Name), err)
}
