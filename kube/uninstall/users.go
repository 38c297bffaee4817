package uninstall

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuledger/gpuledger/kube/cluster"
	"github.com/gpuledger/gpuledger/kube/dra"
)

// users names the pods and the claims that have GPUs of gpuledger, by the agents that the cluster
// has.
func (u Uninstall) users(ctx context.Context) (users []string, err error) {
	look := map[string]func(context.Context) ([]string, error){"gpuledger-dra": u.claims,
		devicePlugin: u.pods}
	for _, name := range agents {
		set, err := u.daemonSet(ctx, name)
		if err != nil {
			return nil, err
		}
		if set == nil {
			continue
		}
		found, err := look[name](ctx)
		if err != nil {
			return nil, err
		}
		users = append(users, found...)
	}
	slices.Sort(users)
	return users, nil
}

// claims names the pods of each claim that has devices of the driver.
func (u Uninstall) claims(ctx context.Context) (users []string, err error) {
	list, err := u.Client.ResourceV1().ResourceClaims("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("cannot see which claims have GPUs: %w", err)
	}
	for _, claim := range list.Items {
		if claim.Status.Allocation == nil || !slices.ContainsFunc(claim.Status.Allocation.Devices.Results,
			func(r resourceapi.DeviceRequestAllocationResult) bool { return r.Driver == dra.DriverName }) {
			continue
		}
		var pods []string
		for _, by := range claim.Status.ReservedFor {
			pods = append(pods, by.Name)
		}
		user := fmt.Sprintf("claim %s/%s", claim.Namespace, claim.Name)
		if len(pods) > 0 {
			user += " of " + strings.Join(pods, " and ")
		}
		users = append(users, user)
	}
	return users, nil
}

// pods names the pods that have devices of the device plugin and have not ended.
func (u Uninstall) pods(ctx context.Context) (users []string, err error) {
	list, err := u.Client.CoreV1().Pods("").List(ctx, metav1.ListOptions{
		FieldSelector: "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"})
	if err != nil {
		return nil, fmt.Errorf("cannot see which pods have GPUs: %w", err)
	}
	for _, pod := range list.Items {
		if slices.ContainsFunc(append(pod.Spec.InitContainers, pod.Spec.Containers...),
			func(c corev1.Container) bool { return hasDevices(&pod, c) }) {
			users = append(users, fmt.Sprintf("pod %s/%s", pod.Namespace, pod.Name))
		}
	}
	return users, nil
}

// hasDevices leaves out what a container has by a claim: claims names that one.
func hasDevices(pod *corev1.Pod, c corev1.Container) bool {
	if pod.Annotations["gpuledger.dev/gpus."+c.Name] != "" { // gpuledger's scheduler has placed it
		return true
	}
	for name := range c.Resources.Limits {
		if strings.HasPrefix(string(name), "gpuledger.dev/") && !cluster.ByClaim(pod, c.Name, name) ||
			name == "aliyun.com/gpu-mem" {
			return true
		}
	}
	return false
}
