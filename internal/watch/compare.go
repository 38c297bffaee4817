package watch

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// Input is all that a comparison needs.
type Input struct {
	Sample    grant.Sample
	Processes map[int]ProcessInfo // those of the sample that could be read
	Grants    []grant.Grant       // those in force
	Inventory grant.Inventory
	Users     *ProcessUsers // of these processes and grants, from an earlier comparison; nil: made here
	// Identify finds out more about a container without a grant; nil: nothing is known.
	Identify func(grant.User) grant.User
	// Serves reports whether a process is a server of gpuledger's MPS daemon for a GPU; nil: none
	// is.
	Serves func(uuid string, p grant.Process) bool
	// Open lists the processes that have a GPU's node open, by GPU, whether they use it or not.
	Open map[string][]grant.Process
	// UserNodes says that grants open device nodes to their users (enforcement.user_nodes = "acl").
	// What a user's programs use counts to the user's grants then, without a binding.
	UserNodes bool
}

// Comparison is the result of a comparison. The run directory keeps it for other programs.
type Comparison struct {
	Taken    time.Time       `json:"taken"`
	GPUs     []GPUUse        `json:"gpus"`
	Grants   []GrantUse      `json:"grants"`
	Findings []grant.Finding `json:"findings"`
	Stale    string          `json:"stale,omitzero"` // why the inventory should be taken again

	// by GPU and MIG device: the memory of processes that could not be found. It is no device's use
	// before the GPU's unexplained memory is believed (Tracker).
	hidden map[string]map[string]grant.Bytes
}

// GPUUse is what is used of a GPU.
type GPUUse struct {
	UUID    string      `json:"uuid"`
	Index   int         `json:"index"`
	Total   grant.Bytes `json:"total"`
	Used    grant.Bytes `json:"used"`
	Outside grant.Bytes `json:"outside"` // of it without a grant, or beyond one
	// of it on MIG devices, by UUID
	MIGOutside map[string]grant.Bytes `json:"mig_outside,omitzero"`
	// of it by no process; the driver itself needs a little
	Unexplained grant.Bytes `json:"unexplained"`
	Utilization int         `json:"utilization"`                  // percent; -1: unknown
	Power       int         `json:"power_milliwatts,omitzero"`    // 0: unknown
	Temperature int         `json:"temperature_celsius,omitzero"` // 0: unknown
	Processes   int         `json:"processes"`
	XIDs        []int       `json:"xids,omitempty"` // since the last sample

	silent bool // it has not answered, and the rest is unknown
}

// GrantUse is what a grant's containers use of one GPU or MIG device of it.
type GrantUse struct {
	ID      grant.ID    `json:"id"`
	GPU     string      `json:"gpu"`
	Granted grant.Bytes `json:"granted"`
	Used    grant.Bytes `json:"used"`
	// Unlisted is its part of what the driver uses for processes and lists for none of them.
	Unlisted  grant.Bytes `json:"unlisted,omitzero"`
	Compute   int         `json:"compute"` // percent of the GPU; -1: unknown
	Processes int         `json:"processes"`
}

// Compare compares a sample with the ledger. It is pure, and its lists are sorted.
func Compare(s Input) Comparison {
	if s.Users == nil {
		s.Users = NewProcessUsers(s.Grants, s.Processes, s.UserNodes)
	}
	j := comparison{Input: s, reported: make(map[*grant.Share]reportIndex, len(s.Grants))}
	j.out.Grants = make([]GrantUse, 0, len(s.Grants))
	j.out.Taken = s.Sample.Taken
	for _, g := range s.Sample.GPUs {
		j.addGPU(g)
	}
	j.checkLayout()
	slices.SortFunc(j.out.Grants, func(a, b GrantUse) int {
		return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.GPU, b.GPU))
	})
	slices.SortFunc(j.out.Findings, func(a, b grant.Finding) int {
		return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.Kind, b.Kind),
			cmp.Compare(a.Key(), b.Key()))
	})
	return j.out
}

type comparison struct {
	Input
	out        Comparison
	reported   map[*grant.Share]reportIndex
	usersOnGPU map[deviceUser][]*userProcess // of the current GPU; nil until a finding needs it
}

// reportIndex is where the report has a grant on one GPU or MIG device.
type reportIndex struct {
	grant, finding int         // finding: -1 is none
	largest        *usage      // the user that uses most of it
	contexts       grant.Bytes // what the contexts of its processes may take
}

// usage is what one user uses of one GPU or MIG device.
type usage struct {
	*sharedUser
	device     string         // the GPU, or the MIG device on it
	covering   []*grant.Grant // the user's grants of it
	memory     grant.Bytes
	contexts   grant.Bytes // what the contexts of its processes may take
	unmeasured bool
	compute    int
	processes  int
}

// isGranted reports whether the user's grants cover what it uses.
func (t *usage) isGranted() bool { return len(t.covering) > 0 }

// covering are a user's grants of a GPU or MIG device: that of its container, or those of its uid.
func (u *sharedUser) covering(device string) (grants []*grant.Grant) {
	if u.grant != nil && u.grant.Has(device) {
		return []*grant.Grant{u.grant}
	}
	for _, g := range u.unbound {
		if g.Has(device) {
			grants = append(grants, g)
		}
	}
	return grants
}

func (j *comparison) add(f grant.Finding) {
	if f.User.Engine == "" {
		f.User.Engine = ParseCgroup(f.User.Cgroup).Engine
	}
	j.out.Findings = append(j.out.Findings, f)
}

func (j *comparison) addGPU(g grant.Usage) {
	if g.Health != grant.Healthy {
		j.add(grant.Finding{Kind: grant.GPULost, GPU: g.UUID, Index: g.Index,
			Message: fmt.Sprintf("GPU %d does not answer: %s", g.Index, g.Health)})
		j.out.GPUs = append(j.out.GPUs, GPUUse{UUID: g.UUID, Index: g.Index, Utilization: -1,
			silent: true})
		return
	}
	use := GPUUse{UUID: g.UUID, Index: g.Index, Total: g.Total, Used: g.Used, Utilization: g.Utilization,
		Power: g.Power, Temperature: g.Temperature, Processes: len(g.Processes), XIDs: g.XIDs}
	j.usersOnGPU = nil
	usages, accounted := j.usages(g)
	rest := g.Used - min(g.Used, accounted)
	for _, t := range usages {
		outside := j.addUsage(g, t)
		use.Outside += outside
		if t.unmeasured && !t.isGranted() {
			outside += max(rest, 1) // the driver does not say how much, and it is not 0
		}
		use.addToMIG(t.device, outside)
	}
	j.findIdleHolders(g, usages)
	if unknown := j.unmeasured(usages); !unknown.any {
		use.Unexplained = rest
		j.addUnlisted(g)
		if use.Unexplained > driverOwn(g.Total) {
			j.addUnexplained(g, use.Unexplained)
		}
	} else if unknown.outside {
		use.Outside += rest
	}
	j.addErrors(g)
	j.checkComputeMode(g)
	j.out.GPUs = append(j.out.GPUs, use)
}

// addToMIG adds what is used of a MIG device without a grant, or beyond one. Of the GPU itself it
// adds nothing.
func (u *GPUUse) addToMIG(device string, bytes grant.Bytes) {
	if device == u.UUID || bytes == 0 {
		return
	}
	if u.MIGOutside == nil {
		u.MIGOutside = map[string]grant.Bytes{}
	}
	u.MIGOutside[device] += bytes
}

// maxUnlisted bounds what a process can use of a GPU beyond what the driver lists for it. On an
// H100 (driver 580) each context takes 5.6 MiB so, and the first one of a GPU 3.3 MiB more. What is
// above the bound has another cause, such as a process that is ending.
const maxUnlisted = 16 * grant.MiB

// addUnlisted divides what the driver lists for no process of a GPU among its processes. What
// contexts take counts against their grants, wherever the driver lists it. It is no finding.
func (j *comparison) addUnlisted(g grant.Usage) {
	unlisted := g.Used
	for _, p := range g.Processes {
		unlisted -= min(unlisted, p.Memory)
	}
	if len(g.Processes) == 0 || unlisted/grant.Bytes(len(g.Processes)) > maxUnlisted {
		return
	}
	each := unlisted / grant.Bytes(len(g.Processes))
	for i := range j.out.Grants {
		if u := &j.out.Grants[i]; u.GPU == g.UUID {
			u.Unlisted = each * grant.Bytes(u.Processes)
		}
	}
}

// deviceUser identifies a usage.
type deviceUser struct {
	device string // the GPU, or the MIG device on it
	user   *sharedUser
}

func deviceUserOf(g grant.Usage, p grant.ProcessUse, m *userProcess) deviceUser {
	device := cmp.Or(p.Device, g.UUID)
	return deviceUser{device, m.user.on(device)}
}

// usages adds up the processes of a GPU by user, in the order of their first process, and how much
// all of them use.
func (j *comparison) usages(g grant.Usage) (list []*usage, accounted grant.Bytes) {
	by := make(map[deviceUser]*usage, min(len(g.Processes), 64))
	for _, p := range g.Processes {
		m := j.Users.find(p.PID)
		if m == nil { // it has just ended, or has another pid in /proc; its memory is unexplained
			j.hide(g, p)
			continue
		}
		accounted += p.Memory
		key := deviceUserOf(g, p, m)
		t := by[key]
		if t == nil {
			t = &usage{sharedUser: key.user, device: key.device, compute: -1,
				covering: key.user.covering(key.device)}
			by[key] = t
			list = append(list, t)
		}
		t.memory += p.Memory
		t.contexts += contextMemory(p)
		t.unmeasured = t.unmeasured || p.Unmeasured
		t.processes++
		if p.Compute >= 0 {
			t.compute = max(t.compute, 0) + p.Compute
		}
	}
	return list, accounted
}

// hide notes the memory of a process that could not be found, if that is on a MIG device.
func (j *comparison) hide(g grant.Usage, p grant.ProcessUse) {
	if p.Device == "" || p.Device == g.UUID || p.Memory == 0 {
		return
	}
	if j.out.hidden == nil {
		j.out.hidden = map[string]map[string]grant.Bytes{}
	}
	if j.out.hidden[g.UUID] == nil {
		j.out.hidden[g.UUID] = map[string]grant.Bytes{}
	}
	j.out.hidden[g.UUID][p.Device] += p.Memory
}

// userOf returns the user of a usage with its processes, for a finding. Most GPUs have no finding.
// With the first one all of the GPU's processes are grouped, so that many findings cost no more
// than one.
func (j *comparison) userOf(g grant.Usage, t *usage) grant.User {
	if j.usersOnGPU == nil {
		j.usersOnGPU = map[deviceUser][]*userProcess{}
		for _, p := range g.Processes {
			if m := j.Users.find(p.PID); m != nil {
				at := deviceUserOf(g, p, m)
				j.usersOnGPU[at] = append(j.usersOnGPU[at], m)
			}
		}
	}
	its := j.usersOnGPU[deviceUser{t.device, t.sharedUser}]
	u := t.user
	u.Command, u.Processes = its[0].Command, make([]grant.Process, len(its))
	for i, m := range its {
		u.Processes[i] = m.Process
	}
	return u
}

// addUsage records what a user uses, and returns how much of it is outside the ledger.
func (j *comparison) addUsage(g grant.Usage, t *usage) grant.Bytes {
	switch {
	case t.grant == nil && (!t.isGranted() || j.isMPSServer(j.userOf(g, t), g.UUID)):
		return j.addUngranted(g, t)
	case !t.isGranted():
		u := j.userOf(g, t)
		j.addOutside(g, t, u, fmt.Sprintf("%s uses %s of %s, which its grant %s does not cover", userName(u),
			amount(t), device(g, t), t.grant.ID))
		return t.memory
	}
	return j.addCovered(g, *t)
}

// addCovered adds what a user uses to its grants. Of several each takes what it has room for, and
// the last one the rest.
func (j *comparison) addCovered(g grant.Usage, t usage) (outside grant.Bytes) {
	left := t.memory
	for i, of := range t.covering {
		if left == 0 && i > 0 {
			break
		}
		share := &of.GPUs[slices.IndexFunc(of.GPUs, func(s grant.Share) bool { return s.UUID == t.device })]
		t.memory = left
		if i < len(t.covering)-1 {
			t.memory = min(left, j.room(share))
		}
		outside += j.addGranted(g, &t, of, share)
		left -= t.memory
		t.processes, t.compute = 0, -1 // they are counted
	}
	return outside
}

// room is what a grant has that is not used yet.
func (j *comparison) room(share *grant.Share) grant.Bytes {
	at, known := j.reported[share]
	if !known {
		return share.Memory
	}
	return share.Memory - min(share.Memory, j.out.Grants[at.grant].Used)
}

// addGranted adds a user to the use of a grant; a claim has several containers.
func (j *comparison) addGranted(g grant.Usage, t *usage, of *grant.Grant, share *grant.Share) grant.Bytes {
	at, known := j.reported[share]
	if !known {
		at = reportIndex{grant: len(j.out.Grants), finding: -1}
		j.out.Grants = append(j.out.Grants, GrantUse{ID: of.ID, GPU: share.UUID, Granted: share.Memory,
			Compute: -1})
	}
	u := &j.out.Grants[at.grant]
	before := beyond(*u)
	u.Used += t.memory
	u.Processes += t.processes
	if t.compute >= 0 {
		u.Compute = max(u.Compute, 0) + t.compute
	}
	at.contexts += t.contexts
	if at.largest == nil || t.memory > at.largest.memory {
		largest := *t
		at.largest = &largest
	}
	over := beyond(*u)
	if of.Mode.IsWhole() {
		over, before = 0, 0
	}
	if over > 0 {
		user := j.userOf(g, at.largest)
		at.finding = j.setOverGrant(at.finding, grant.Finding{Kind: grant.OverGrant, GPU: g.UUID,
			Index: g.Index, Bytes: over, Grant: u.ID, User: user, Contexts: at.contexts,
			Message: overMessage(userName(user), at.largest.memory, g.Index, *u)})
	}
	j.reported[share] = at
	return over - before
}

func beyond(u GrantUse) grant.Bytes { return u.Used - min(u.Used, u.Granted) }

// overMessage says what the largest user of a grant uses, and what all of its users do.
func overMessage(largest string, memory grant.Bytes, gpu int, u GrantUse) string {
	if memory == u.Used {
		return fmt.Sprintf("%s uses %s of GPU %d, %s more than the %s of its grant %s", largest, memory, gpu,
			beyond(u), u.Granted, u.ID)
	}
	return fmt.Sprintf("%s uses %s of GPU %d, and all that use its grant %s use %s together, %s more than "+
		"its %s", largest, memory, gpu, u.ID, u.Used, beyond(u), u.Granted)
}

// setOverGrant records that a grant is exceeded, in place of the finding before it. Of a claim's
// containers, or of a user's programs, it names the one that uses most.
func (j *comparison) setOverGrant(at int, f grant.Finding) int {
	if at >= 0 {
		j.out.Findings[at] = f
		return at
	}
	j.add(f)
	return len(j.out.Findings) - 1
}

// addUngranted records what a user without a grant uses.
func (j *comparison) addUngranted(g grant.Usage, t *usage) grant.Bytes {
	u := j.userOf(g, t)
	if j.isMPSServer(u, g.UUID) {
		return 0 // it uses the memory of its clients, which the ledger has
	}
	if u.Container != "" && j.Identify != nil {
		u = j.Identify(u)
	}
	if !u.Exempt {
		j.addOutside(g, t, u, fmt.Sprintf("%s uses %s of %s without a grant", userName(u), amount(t),
			device(g, t)))
	}
	return t.memory
}

// findIdleHolders finds containers that have a GPU open without a grant for it, and do not use it.
// Another process may have passed them the descriptor. Processes of the node, such as
// nvidia-persistenced, and of its users may have GPUs open.
func (j *comparison) findIdleHolders(g grant.Usage, usages []*usage) {
	seen := map[*sharedUser]bool{}
	for _, t := range usages {
		seen[t.sharedUser] = true
	}
	for _, p := range j.Open[g.UUID] {
		m := j.Users.find(p.PID)
		if m == nil || m.Process != p || m.user.user.Container == "" || j.mayOpen(m.user, g) {
			continue
		}
		holder := m.user.on("") // of every uid
		if seen[holder] {
			continue
		}
		seen[holder] = true
		u := holder.user
		u.Command, u.Processes = m.Command, []grant.Process{m.Process}
		if m.user.grant == nil && j.Identify != nil {
			u = j.Identify(u)
		}
		if u.Exempt || !u.IsRootsContainer() {
			continue
		}
		f := grant.Finding{Kind: grant.OutsideLedger, GPU: g.UUID, Index: g.Index, User: u,
			Message: fmt.Sprintf("%s has GPU %d open without a grant of it", userName(u), g.Index)}
		if m.user.grant != nil {
			f.Grant = m.user.grant.ID
		}
		j.add(f)
	}
}

// mayOpen reports whether a user has a grant of a GPU, or of a MIG device on it.
func (j *comparison) mayOpen(u *sharedUser, g grant.Usage) bool {
	return u.grant != nil && j.isOn(u.grant, g) ||
		slices.ContainsFunc(u.unbound, func(of *grant.Grant) bool { return j.isOn(of, g) })
}

// isOn reports whether a grant includes a GPU, or a MIG device on it.
func (j *comparison) isOn(of *grant.Grant, g grant.Usage) bool {
	return of.Has(g.UUID) || slices.ContainsFunc(g.MIG, of.Has)
}

// isMPSServer reports whether a user is the MPS server for a GPU's own clients, whose memory the
// driver reports as the server's. The name of a process proves nothing. A container's own server
// belongs to the container.
func (j *comparison) isMPSServer(u grant.User, uuid string) bool {
	return u.Container == "" && j.Serves != nil && j.Serves(uuid, u.Processes[0])
}

func (j *comparison) addOutside(g grant.Usage, t *usage, u grant.User, message string) {
	f := grant.Finding{Kind: grant.OutsideLedger, GPU: g.UUID, Index: g.Index, Bytes: t.memory, User: u,
		Message: message}
	if t.device != g.UUID {
		f.MIG = t.device
	}
	if t.grant != nil {
		f.Grant = t.grant.ID
	}
	j.add(f)
}

// unmeasured reports whether the driver keeps secret how much some process uses, and whether such a
// process has no grant.
func (j *comparison) unmeasured(usages []*usage) (h struct{ any, outside bool }) {
	for _, t := range usages {
		h.any = h.any || t.unmeasured
		h.outside = h.outside || t.unmeasured && t.grant == nil && !t.isGranted()
	}
	return h
}

// driverOwn is what a GPU may use without any process: tables of the driver, and memory of
// processes that are ending.
func driverOwn(total grant.Bytes) grant.Bytes { return max(512*grant.MiB, total/100) }

func (j *comparison) addUnexplained(g grant.Usage, bytes grant.Bytes) {
	j.add(grant.Finding{Kind: grant.Unexplained, GPU: g.UUID, Index: g.Index, Bytes: bytes,
		Message: fmt.Sprintf("%s of GPU %d are in use and no process accounts for them", bytes, g.Index)})
}

func (j *comparison) addErrors(g grant.Usage) {
	if len(g.XIDs) == 0 {
		return
	}
	var numbers []string
	for _, xid := range g.XIDs {
		if number := fmt.Sprint(xid); !slices.Contains(numbers, number) {
			numbers = append(numbers, number)
		}
	}
	j.add(grant.Finding{Kind: grant.GPUError, GPU: g.UUID, Index: g.Index,
		Message: fmt.Sprintf("the driver reported XID %s on GPU %d", strings.Join(numbers, ", "), g.Index)})
}

// checkComputeMode finds a compute mode in which the GPU's grants cannot be used.
func (j *comparison) checkComputeMode(g grant.Usage) {
	if g.ComputeMode == "" || g.ComputeMode == grant.ComputeDefault {
		return
	}
	for i := range j.Grants {
		held := &j.Grants[i]
		if !held.Has(g.UUID) || g.ComputeMode == grant.ComputeExclusive &&
			(held.Mode == grant.MPS || held.Mode == grant.Exclusive) {
			continue
		}
		j.add(grant.Finding{Kind: grant.ModeChanged, GPU: g.UUID, Index: g.Index,
			Message: fmt.Sprintf("GPU %d is in compute mode %s, in which its grants of mode %s cannot be "+
				"used (`nvidia-smi -i %d -c DEFAULT` undoes it)", g.Index, g.ComputeMode,
				held.Mode, g.Index)})
		return
	}
}

// checkLayout compares the GPUs and MIG devices of the sample with those of the inventory and of
// the grants.
func (j *comparison) checkLayout() {
	there := map[string]bool{}
	var stale []string // all of them: one that stays must not hide another
	for _, g := range j.Sample.GPUs {
		known, found := j.Inventory.Find(g.UUID)
		var before []string
		for _, m := range known.MIG {
			before = append(before, m.UUID)
		}
		there[g.UUID] = true
		for _, uuid := range g.MIG {
			there[uuid] = true
		}
		switch {
		case !found:
			stale = append(stale, fmt.Sprintf("GPU %d (%s) is new", g.Index, g.UUID))
		case g.Health != grant.Healthy: // its MIG devices are unknown; the inventory should say so
			if known.Health == grant.Healthy {
				stale = append(stale, fmt.Sprintf("GPU %d does not answer any more", g.Index))
			}
			for _, uuid := range before {
				there[uuid] = true
			}
		case known.Health != grant.Healthy && known.Health != grant.Unpartitioned:
			// the inventory may lack its MIG devices, too
			stale = append(stale, fmt.Sprintf("GPU %d answers again", g.Index))
		case !sameSet(before, g.MIG):
			changed := fmt.Sprintf("the MIG devices of GPU %d have changed", g.Index)
			stale = append(stale, changed)
			j.add(grant.Finding{Kind: grant.LayoutChanged, GPU: g.UUID, Index: g.Index,
				Message: changed + " behind the inventory"})
		}
	}
	for _, g := range j.Inventory.GPUs {
		if !there[g.UUID] {
			gone := fmt.Sprintf("GPU %d (%s) is gone", g.Index, g.UUID)
			stale = append(stale, gone)
			j.add(grant.Finding{Kind: grant.GPULost, GPU: g.UUID, Index: g.Index, Message: gone})
			there[g.UUID] = true
		}
	}
	j.out.Stale = strings.Join(stale, "; ")
	j.checkGrants(there)
}

// checkGrants finds grants of GPUs or MIG devices that are gone.
func (j *comparison) checkGrants(there map[string]bool) {
	for _, g := range j.Grants {
		for _, s := range g.GPUs {
			if there[s.UUID] {
				continue
			}
			kind, what := grant.GPULost, "GPU"
			if strings.HasPrefix(s.UUID, "MIG-") {
				kind, what = grant.LayoutChanged, "MIG device"
			}
			j.add(grant.Finding{Kind: kind, GPU: s.UUID, Index: -1, Grant: g.ID,
				Message: fmt.Sprintf("grant %s is of %s %s, which is gone", g.ID, what, s.UUID)})
		}
	}
}

func sameSet(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

// userName is how processes name a user.
func userName(u grant.User) string {
	pod := ""
	if u.Pod.Pod != "" {
		pod = u.Pod.Namespace + "/" + u.Pod.Pod
	} else if u.Pod.UID != "" {
		pod = u.Pod.UID
	}
	switch {
	case u.Container == "":
		return fmt.Sprintf("process %d (%s) of the node", u.Processes[0].PID, grant.Printable(u.Command))
	case u.Pod.Container != "":
		return grant.Printable(fmt.Sprintf("container %q of pod %s", u.Pod.Container, pod))
	case pod != "":
		return grant.Printable(fmt.Sprintf("container %s of pod %s", short(u.Container), pod))
	case u.Engine != "":
		return grant.Printable(fmt.Sprintf("container %s of %s", short(u.Container), u.Engine))
	}
	return grant.Printable("container " + short(u.Container))
}

// short is as much of an id as engines show.
func short(id string) string {
	if isID(id) {
		return id[:12]
	}
	return id
}

func amount(t *usage) string {
	if t.unmeasured {
		return "an amount that the driver does not report"
	}
	return t.memory.String()
}

func device(g grant.Usage, t *usage) string {
	if t.device != g.UUID {
		return fmt.Sprintf("MIG device %s on GPU %d", t.device, g.Index)
	}
	return fmt.Sprintf("GPU %d", g.Index)
}

// Outside is the memory that is in use without a grant or beyond one, by GPU and MIG device.
func (r Comparison) Outside() map[string]grant.Bytes {
	outside := map[string]grant.Bytes{}
	for _, g := range r.GPUs {
		if g.Outside > 0 {
			outside[g.UUID] = g.Outside
		}
		maps.Copy(outside, g.MIGOutside)
	}
	return outside
}

// Excess is what of it is beyond grants.
func (r Comparison) Excess() (all []grant.Excess) {
	for _, f := range r.Findings {
		if f.Kind == grant.OverGrant {
			all = append(all, grant.Excess{Grant: f.Grant, GPU: f.GPU, Bytes: f.Bytes})
		}
	}
	return all
}

// Held are processes of containers that have a GPU or MIG device without a grant of it. What a user
// of the node makes is no such container: no user can close a GPU.
func (r Comparison) Held() map[string][]grant.Process {
	held := map[string][]grant.Process{}
	add := func(device string, processes []grant.Process) {
		room := MaxHolders - len(held[device])
		held[device] = append(held[device], processes[:min(room, len(processes))]...)
	}
	for _, f := range r.Findings {
		if f.Kind != grant.OutsideLedger || !f.User.IsRootsContainer() || f.User.Exempt {
			continue
		}
		add(f.GPU, f.User.Processes)
		if f.MIG != "" {
			add(f.MIG, f.User.Processes)
		}
	}
	return held
}

// MaxHolders is how many processes of a device Held lists: one that runs is enough, and the record
// has to stay small.
const MaxHolders = 256
