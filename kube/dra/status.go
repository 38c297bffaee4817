package dra

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	applymeta "k8s.io/client-go/applyconfigurations/meta/v1"
	apply "k8s.io/client-go/applyconfigurations/resource/v1"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/kube/nodeledger"
)

// statusManager is the field manager of what the driver writes into the status of claims.
const statusManager = "gpuledger-dra"

// PrepareResourceClaims prepares claims as the driver does, and then writes their status. The
// kubelet does not wait for that.
func (p plugin) PrepareResourceClaims(ctx context.Context,
	claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results, err := p.Driver.PrepareResourceClaims(ctx, claims)
	for _, claim := range claims {
		if results[claim.UID].Err == nil {
			p.reports.add(claim, p.reportLater)
		}
	}
	return results, err
}

// reports are the claims whose status is to be written, one after another: many at once would keep
// the API server and the processor from the claims that are still being prepared.
type reports struct {
	mu      sync.Mutex
	waiting []waitingReport
	running bool
}

type waitingReport struct {
	claim *resourceapi.ResourceClaim
	since time.Time
}

// add has the function called for a claim, after those that wait.
func (r *reports) add(claim *resourceapi.ResourceClaim, report func(waitingReport)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting = append(r.waiting, waitingReport{claim, time.Now()}); r.running {
		return
	}
	r.running = true
	go func() {
		for next, is := r.next(); is; next, is = r.next() {
			report(next)
		}
	}()
}

func (r *reports) next() (next waitingReport, is bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.waiting) == 0 {
		r.running = false
		return next, false
	}
	next, r.waiting = r.waiting[0], r.waiting[1:]
	return next, true
}

// A status waits while claims are prepared or given up, but no longer than reportWait.
const (
	reportWait  = time.Second
	reportPause = 20 * time.Millisecond
)

func (p plugin) reportLater(r waitingReport) {
	for p.locks.busy() && time.Since(r.since) < reportWait {
		time.Sleep(reportPause)
	}
	p.report(r.claim)
}

// report writes into the status of a claim what it has been granted of each device, so that its
// user can read it there (KEP 4817). No pod waits for it, and a failure is only logged. A driver
// with the role of an older version may not do it, and logs that once.
func (p plugin) report(claim *resourceapi.ResourceClaim) {
	d := p.Driver
	now, err := d.read()
	if err != nil {
		return
	}
	status := deviceStatus(claim, d.Node, now)
	if status == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), apiTimeout)
	defer cancel()
	_, err = d.watcher().ResourceV1().ResourceClaims(claim.Namespace).ApplyStatus(ctx,
		apply.ResourceClaim(claim.Name, claim.Namespace).WithUID(claim.UID).WithStatus(status),
		metav1.ApplyOptions{FieldManager: statusManager, Force: true})
	switch {
	case apierrors.IsForbidden(err):
		d.unreported.Do(func() {
			d.Log.Info("claims do not get the status of their devices: apply the manifests of this version",
				"error", err)
		})
	case err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err):
		d.Log.Warn("cannot write the status of a claim's devices", "namespace", claim.Namespace, "claim",
			claim.Name, "error", err)
	}
}

// deviceStatus returns the status of the devices that a claim has on this node; nil if it has no
// grant here.
func deviceStatus(claim *resourceapi.ResourceClaim, pool string,
	p nodeledger.Content) *apply.ResourceClaimStatusApplyConfiguration {
	if claim.Status.Allocation == nil {
		return nil
	}
	status := apply.ResourceClaimStatus()
	for _, r := range claim.Status.Allocation.Devices.Results {
		if r.Driver != DriverName || r.Pool != pool {
			continue
		}
		i := slices.IndexFunc(p.Grants, func(g grant.Grant) bool {
			return !g.Draining && (g.Owner == owner(claim.UID, "") ||
				g.Owner == owner(claim.UID, mainRequest(r.Request)))
		})
		if i < 0 {
			continue
		}
		g := p.Grants[i]
		device := apply.AllocatedDeviceStatus().WithDriver(r.Driver).WithPool(r.Pool).WithDevice(r.Device).
			WithConditions(applymeta.Condition().WithType("Ready").WithStatus(metav1.ConditionTrue).
				WithReason("Granted").WithMessage(granted(g)).
				WithLastTransitionTime(metav1.NewTime(g.Created)))
		if r.ShareID != nil {
			device.WithShareID(string(*r.ShareID))
		}
		status.WithDevices(device)
	}
	if len(status.Devices) == 0 {
		return nil
	}
	return status
}

// granted says what a container may use of each of a grant's GPUs, and what holds it to that.
func granted(g grant.Grant) string {
	text := "a whole GPU"
	switch g.Mode {
	case grant.Exclusive:
	case grant.MIG:
		text = "a MIG device"
	default:
		text = g.GPUs[0].Memory.String()
		if g.Compute > 0 {
			text += fmt.Sprintf(" and %d%% of the compute", g.Compute)
		}
	}
	return fmt.Sprintf("%s in mode %s, strength %s", text, g.Mode, g.Strength)
}
