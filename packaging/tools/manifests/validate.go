package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/validation/field"
	yamlutil "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/admissionregistration"
	_ "k8s.io/kubernetes/pkg/apis/admissionregistration/install"
	admissionvalidation "k8s.io/kubernetes/pkg/apis/admissionregistration/validation"
	"k8s.io/kubernetes/pkg/apis/apps"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	appsvalidation "k8s.io/kubernetes/pkg/apis/apps/validation"
	"k8s.io/kubernetes/pkg/apis/batch"
	_ "k8s.io/kubernetes/pkg/apis/batch/install"
	batchvalidation "k8s.io/kubernetes/pkg/apis/batch/validation"
	"k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	corevalidation "k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/apis/networking"
	_ "k8s.io/kubernetes/pkg/apis/networking/install"
	networkvalidation "k8s.io/kubernetes/pkg/apis/networking/validation"
	"k8s.io/kubernetes/pkg/apis/node"
	_ "k8s.io/kubernetes/pkg/apis/node/install"
	nodevalidation "k8s.io/kubernetes/pkg/apis/node/validation"
	"k8s.io/kubernetes/pkg/apis/rbac"
	_ "k8s.io/kubernetes/pkg/apis/rbac/install"
	rbacvalidation "k8s.io/kubernetes/pkg/apis/rbac/validation"
	"k8s.io/kubernetes/pkg/apis/resource"
	_ "k8s.io/kubernetes/pkg/apis/resource/install"
	resourcevalidation "k8s.io/kubernetes/pkg/apis/resource/validation"
	"k8s.io/kubernetes/pkg/capabilities"
)

// manifest is a document that an API server would take, with the defaults that it fills in.
type manifest struct {
	kind, name string
	value      runtime.Object
}

// An API server takes privileged pods where it has --allow-privileged, as every cluster's does: its
// own agents are.
func init() { capabilities.Initialize(capabilities.Capabilities{AllowPrivileged: true}) }

var decoder = serializer.NewCodecFactory(legacyscheme.Scheme, serializer.EnableStrict).UniversalDecoder()

// validated reads documents. Two of one name are an error.
func validated(text []byte) ([]manifest, error) {
	var all []manifest
	seen := map[string]bool{}
	for r := yamlutil.NewYAMLReader(bufio.NewReader(bytes.NewReader(text))); ; {
		document, err := r.Read()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		if len(bytes.TrimSpace(document)) == 0 {
			continue
		}
		value, kind, err := decoder.Decode(document, nil, nil)
		if err != nil {
			return nil, err
		}
		named, err := meta.Accessor(value)
		if err != nil {
			return nil, err
		}
		o := manifest{kind.Kind, named.GetName(), value}
		// Helm makes the objects of one hook when those of another are gone.
		id := o.kind + "/" + o.name + "/" + named.GetAnnotations()["helm.sh/hook"]
		if seen[id] {
			return nil, fmt.Errorf("%s %s is there twice", o.kind, o.name)
		}
		seen[id] = true
		// The API server knows a namespaced object's namespace by its path, or sets "default".
		if named.GetNamespace() == "" {
			named.SetNamespace(namespaceOf(value))
		}
		if problems := judge(value); len(problems) > 0 {
			return nil, fmt.Errorf("%s %s: %w", o.kind, o.name, problems.ToAggregate())
		}
		all = append(all, o)
	}
}

func namespaceOf(value runtime.Object) string {
	switch value.(type) {
	case *apps.DaemonSet, *apps.Deployment, *rbac.Role, *rbac.RoleBinding, *core.ConfigMap,
		*core.ResourceQuota, *core.Pod, *core.ServiceAccount, *core.Service,
		*networking.NetworkPolicy,
		*resource.ResourceClaimTemplate:
		return "default"
	}
	return ""
}

// selected gives a Job the selector that an API server makes for it.
func selected(job *batch.Job) {
	job.UID = "u"
	made := map[string]string{batch.ControllerUidLabel: "u", batch.JobNameLabel: job.Name,
		batch.LegacyControllerUidLabel: "u", batch.LegacyJobNameLabel: job.Name}
	maps.Copy(job.Spec.Template.Labels, made)
	job.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{batch.ControllerUidLabel: "u"}}
}

// judge is the API server's validation of what we ship. A kind that is not here we do not ship.
func judge(value runtime.Object) field.ErrorList {
	switch o := value.(type) {
	case *core.Namespace:
		return corevalidation.ValidateNamespace(o)
	case *core.ServiceAccount:
		return corevalidation.ValidateServiceAccount(o)
	case *core.ConfigMap:
		return corevalidation.ValidateConfigMap(o)
	case *core.ResourceQuota:
		return corevalidation.ValidateResourceQuota(o)
	case *core.Pod:
		return corevalidation.ValidatePodCreate(o, corevalidation.PodValidationOptions{})
	case *apps.DaemonSet:
		return appsvalidation.ValidateDaemonSet(o, corevalidation.PodValidationOptions{})
	case *apps.Deployment:
		return appsvalidation.ValidateDeployment(o, corevalidation.PodValidationOptions{})
	case *node.RuntimeClass:
		return nodevalidation.ValidateRuntimeClass(o)
	case *networking.NetworkPolicy:
		return networkvalidation.ValidateNetworkPolicy(o, networkvalidation.NetworkPolicyValidationOptions{})
	case *batch.Job:
		selected(o)
		return batchvalidation.ValidateJob(o,
			batchvalidation.JobValidationOptions{RequirePrefixedLabels: true})
	case *rbac.Role:
		return rbacvalidation.ValidateRole(o)
	case *rbac.RoleBinding:
		return rbacvalidation.ValidateRoleBinding(o)
	case *rbac.ClusterRole:
		return rbacvalidation.ValidateClusterRole(o, rbacvalidation.ClusterRoleValidationOptions{})
	case *rbac.ClusterRoleBinding:
		return rbacvalidation.ValidateClusterRoleBinding(o)
	case *resource.DeviceClass:
		return resourcevalidation.ValidateDeviceClass(o)
	case *resource.ResourceClaimTemplate:
		return resourcevalidation.ValidateResourceClaimTemplate(o)
	case *core.Service:
		o.Spec.ClusterIPs, o.Spec.ClusterIP = []string{"None"}, "None" // an API server gives it an address
		return corevalidation.ValidateServiceCreate(o)
	case *admissionregistration.MutatingWebhookConfiguration:
		return admissionvalidation.ValidateMutatingWebhookConfiguration(o)
	case *admissionregistration.ValidatingWebhookConfiguration:
		return admissionvalidation.ValidateValidatingWebhookConfiguration(o)
	case *admissionregistration.ValidatingAdmissionPolicy:
		return admissionvalidation.ValidateValidatingAdmissionPolicy(o)
	case *admissionregistration.ValidatingAdmissionPolicyBinding:
		return admissionvalidation.ValidateValidatingAdmissionPolicyBinding(o)
	}
	return field.ErrorList{field.NotSupported(field.NewPath("kind"), fmt.Sprintf("%T", value),
		[]string{"the kinds in judge"})}
}
