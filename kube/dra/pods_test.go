package dra

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/gpuledger/gpuledger/internal/grant"
	"github.com/gpuledger/gpuledger/kube/nodeledger"
	"github.com/gpuledger/gpuledger/kube/nodeledgertest"
)

// teams returns ties to pods in the claims' namespace.
func teams(uids ...string) []grant.Tie {
	to := []grant.Tie{"namespace:team"}
	for _, uid := range uids {
		to = append(to, grant.PodTie(uid))
	}
	return to
}

// of returns a version of a claim that is reserved for these pods.
func (s site) of(version int, uid string, pods ...string) *resourceapi.ResourceClaim {
	c := claim(uid, s.result("gpu", 0, grant.Limit, "1Gi", "0"))
	c.ResourceVersion, c.Status.ReservedFor = fmt.Sprint(version), reservedFor(pods...)
	return c
}

// isFor checks the ties of the only grant.
func (s site) isFor(t *testing.T, when string, want ...grant.Tie) {
	t.Helper()
	if grants := s.Grants(); len(grants) != 1 || !slices.Equal(grants[0].For, want) {
		t.Errorf("%s: %+v, want one for %v", when, grants, want)
	}
}

func TestAClaimsGrantIsForItsPods(t *testing.T) {
	s := newSite(t, 1)
	s.has(t, s.of(5, "u-1", "p2", "p1"))
	s.isFor(t, "prepared", teams("p1", "p2")...)
	s.has(t, s.of(7, "u-1", "p1", "p3"))
	s.isFor(t, "prepared again", teams("p1", "p3")...)
	s.has(t, s.of(6, "u-1", "p1"))
	s.isFor(t, "prepared again by what was so before", teams("p1", "p3")...)
	if r := s.prepares(t, s.of(8, "u-2")); r.Err == nil ||
		!strings.Contains(r.Err.Error(), "the claim is reserved for no pod") {
		t.Errorf("reserved for no pod: %v", r.Err)
	}
	// it reads only the ledger
	late := &Driver{Ledger: s.Driver.Ledger, Node: pool, Client: s.Client, Log: s.Log}
	if _, err := late.follower().retie(); err != nil {
		t.Error(err)
	}
	s.isFor(t, "a driver that was started anew", teams("p1", "p3")...)
}

// The claim does not list the members of a group.
func TestAPodGroupsClaimIsTiedToItsNamespace(t *testing.T) {
	s := newSite(t, 1)
	c := s.of(1, "u-1", "p1")
	c.Status.ReservedFor = append(c.Status.ReservedFor,
		resourceapi.ResourceClaimConsumerReference{APIGroup: "scheduling.k8s.io",
			Resource: "podgroups", Name: "g",
			UID: "g1"})
	s.has(t, c)
	s.isFor(t, "prepared", "namespace:team")
}

func TestAnotherModeIsAnotherGrant(t *testing.T) {
	w := claimAsk{}
	w.ask.Names, w.ask.Mode = []string{"GPU-b", "GPU-a"}, grant.Limit
	g := grant.Grant{Mode: grant.Limit, GPUs: []grant.Share{{UUID: "GPU-a", Memory: 1},
		{UUID: "GPU-b", Memory: 2}}}
	if !w.matches(g) {
		t.Error("the same GPUs in the same mode: it is another")
	}
	if g.Mode = grant.Timeslice; w.matches(g) {
		t.Error("in another mode it is the same")
	}
	g.Mode, g.GPUs = grant.Limit, g.GPUs[:1]
	if w.matches(g) {
		t.Error("on other GPUs it is the same")
	}

	s := newSite(t, 1)
	before := s.has(t, claim("u-1", s.result("gpu", 0, grant.Limit, "4Gi", "0")))
	after := s.has(t, claim("u-1", s.result("gpu", 0, grant.Timeslice, "4Gi", "0")))
	if grants := s.Grants(); before == after || len(grants) != 1 || grants[0].Mode != grant.Timeslice {
		t.Errorf("allocated anew in another mode: %v, by the same name: %v", grants, before == after)
	}
}

// streams holds the watches of a cluster, by the claims' names.
type streams struct {
	mu    sync.Mutex
	of    map[string]*watch.FakeWatcher
	first map[string]*resourceapi.ResourceClaim // the first event of a new watch
	ever  map[string]int
}

// watched makes the site's API report changes of claims.
func watched(s site) *streams {
	all := &streams{of: map[string]*watch.FakeWatcher{}, first: map[string]*resourceapi.ResourceClaim{},
		ever: map[string]int{}}
	s.Client.(*fake.Clientset).PrependWatchReactor("resourceclaims",
		func(a clienttesting.Action) (bool, watch.Interface, error) {
			all.mu.Lock()
			defer all.mu.Unlock()
			name, found := a.(clienttesting.WatchAction).GetWatchRestrictions().Fields.RequiresExactMatch(
				"metadata.name")
			if !found || a.GetNamespace() != "team" {
				return true, nil, errors.New("it watches more than the claims that it holds")
			}
			w := watch.NewFakeWithOptions(watch.FakeOptions{ChannelSize: 100})
			all.of[name] = w
			all.ever[name]++
			if c := all.first[name]; c != nil {
				w.Add(c)
			}
			return true, w, nil
		})
	return all
}

// send sends a claim to its watch, now or when the watch begins.
func (a *streams) send(c *resourceapi.ResourceClaim) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.first[c.Name] = c
	if w := a.of[c.Name]; w != nil && !w.IsStopped() {
		w.Modify(c)
	}
}

func (a *streams) watches(name string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ever[name]
}

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within a minute", what)
		}
	}
}

// becomes waits until the only grant has these ties.
func (s site) becomes(t *testing.T, when string, want ...grant.Tie) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("%s: %+v, want it for %v", when, s.Grants(), want)
		}
	}()
	eventually(t, when, func() bool {
		grants := s.Grants()
		return len(grants) == 1 && slices.Equal(grants[0].For, want)
	})
}

// follows runs a driver's Follow until stop is called.
func follows(d *Driver) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() { d.Follow(ctx, 10*time.Millisecond) })
	return func() { cancel(); all.Wait() }
}

// The kubelet prepares a claim once, even if other pods are added to it later.
func TestPodsAddedToAPreparedClaim(t *testing.T) {
	s := newSite(t, 1)
	api := watched(s)
	stop := follows(s.Driver)
	defer func() { stop() }()
	api.send(s.of(1, "u-1", "p1"))
	s.has(t, s.of(1, "u-1", "p1"))
	s.becomes(t, "prepared", teams("p1")...)
	eventually(t, "the claim is watched", func() bool { return api.watches("claim-u-1") == 1 })
	api.send(s.of(2, "u-1", "p1", "p2"))
	s.becomes(t, "another pod is added", teams("p1", "p2")...)
	api.send(s.of(3, "u-1", "p2"))
	s.becomes(t, "the first goes", teams("p2")...)
	foreign := s.of(4, "u-9", "p9")
	foreign.Name = "claim-u-1"
	api.send(foreign)
	api.send(s.of(5, "u-1"))
	api.send(s.of(6, "u-1", "p2", "p4"))
	s.becomes(t, "a claim without pods, and one of its name between", teams("p2", "p4")...)
	api.send(s.of(7, "u-1"))
	stop()
	s.isFor(t, "the last were deleted", teams("p2", "p4")...)

	// While no driver runs another pod is added. The next driver finds the ties in the ledger, and
	// its watch reports the pod.
	api.send(s.of(8, "u-1", "p2", "p5"))
	next := &Driver{Ledger: s.Driver.Ledger, Node: pool, Client: s.Client, Log: s.Log}
	s.isFor(t, "no driver follows", teams("p2", "p4")...)
	stop = follows(next)
	s.becomes(t, "the next driver", teams("p2", "p5")...)

	s.unprepares(t, "u-1")
	eventually(t, "what is given up is watched no more", func() bool {
		next.pods.mu.Lock()
		defer next.pods.mu.Unlock()
		return len(next.pods.claims) == 0
	})
}

// A watch ends: the API ends each after a while, or stops itself.
func TestAnEndedWatchIsRestarted(t *testing.T) {
	s := newSite(t, 1)
	api := watched(s)
	defer follows(s.Driver)()
	api.send(s.of(1, "u-1", "p1"))
	s.has(t, s.of(1, "u-1", "p1"))
	eventually(t, "the claim is watched", func() bool { return api.watches("claim-u-1") == 1 })
	api.mu.Lock()
	api.of["claim-u-1"].Error(&runtime.Unknown{})
	api.first["claim-u-1"] = s.of(2, "u-1", "p1", "p2")
	api.mu.Unlock()
	s.becomes(t, "what was missed", teams("p1", "p2")...)
	if n := api.watches("claim-u-1"); n != 2 {
		t.Errorf("the claim was watched %d times", n)
	}
}

// After etcd is restored from a backup the versions of a claim begin again. A late watch also
// reports an older version, but the API has the newer one.
func TestAClaimOfARestoredCluster(t *testing.T) {
	s := newSite(t, 1)
	api := watched(s)
	var asked atomic.Int32
	stored := make(chan *resourceapi.ResourceClaim, 1)
	stored <- s.of(9, "u-1", "p1")
	s.Client.(*fake.Clientset).PrependReactor("get", "resourceclaims",
		func(clienttesting.Action) (bool, runtime.Object, error) {
			c := <-stored
			stored <- c
			asked.Add(1)
			return true, c, nil
		})
	defer follows(s.Driver)()
	api.send(s.of(9, "u-1", "p1"))
	s.has(t, s.of(9, "u-1", "p1"))
	eventually(t, "the claim is watched", func() bool { return api.watches("claim-u-1") == 1 })
	api.send(s.of(4, "u-1", "late"))
	eventually(t, "a late version is looked up", func() bool {
		r, _ := s.pods.known("u-1")
		return asked.Load() == 1 && r.version == 9
	})
	s.isFor(t, "a late version", teams("p1")...)
	api.send(s.of(10, "u-1", "p1", "p2"))
	s.becomes(t, "a newer one", teams("p1", "p2")...)
	<-stored
	stored <- s.of(6, "u-1", "p1", "p3")
	api.send(s.of(5, "u-1", "p1"))
	s.becomes(t, "restored", teams("p1", "p3")...)
	api.send(s.of(7, "u-1", "p4"))
	s.becomes(t, "the next version", teams("p4")...)
}

// Who may change a claim can remove its finalizer and delete it under a running container. The
// scheduler does not count it any more.
func TestAClaimThatIsDeletedUnderItsContainer(t *testing.T) {
	type next func(*testing.T, site, *streams, *resourceapi.ResourceClaim) *Driver
	for name, next := range map[string]next{
		"while it is watched": func(t *testing.T, s site, api *streams,
			c *resourceapi.ResourceClaim) *Driver {
			api.send(c)
			s.isShown(t)
			api.mu.Lock()
			defer api.mu.Unlock()
			api.of[c.Name].Delete(c)
			return s.Driver
		},
		"before it is watched": func(_ *testing.T, s site, _ *streams, _ *resourceapi.ResourceClaim) *Driver {
			return s.Driver
		},
		"while no driver runs": func(_ *testing.T, s site, _ *streams, _ *resourceapi.ResourceClaim) *Driver {
			d := &Driver{Ledger: s.Driver.Ledger, Node: pool, Client: s.Client, Log: s.Log}
			d.chosen.Store(&choice{})
			return d
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, 1)
			api := watched(s)
			defer follows(s.Driver)()
			c := s.of(1, "u-1", "p1")
			s.has(t, c)
			defer s.Use(s.Grants()[0].ID, grant.Identity{UID: "p1", Namespace: "team"})()
			eventually(t, "it is watched", func() bool { return api.watches(c.Name) == 1 })
			d := next(t, s, api, c)
			eventually(t, "the grant is draining", func() bool {
				if err := d.Reclaim(context.Background()); err != nil {
					t.Fatal(err)
				}
				return s.Grants()[0].Draining
			})
			list, err := Slices(contentOf(t, d), d.pods.consumed)
			if err != nil {
				t.Fatal(err)
			}
			free := list[0].Devices[0].Capacity[memory].Value
			if got, want := grant.Bytes(free.Value()), s.freeOf(t); got != want {
				t.Errorf("the scheduler is offered %s, and %s are free", got, want)
			}
		})
	}
}

// isShown waits until a watch shows claim u-1.
func (s site) isShown(t *testing.T) {
	t.Helper()
	eventually(t, "the watch shows the claim", func() bool {
		r, _ := s.pods.known("u-1")
		return r.shown
	})
}

// freeOf returns what the ledger has free on the only GPU.
func (s site) freeOf(t *testing.T) grant.Bytes {
	t.Helper()
	seats, err := contentOf(t, s.Driver).Seats("")
	if err != nil {
		t.Fatal(err)
	}
	return seats[0].Free
}

// A claim in use that a watch shows is not looked up.
func TestAClaimInUseIsNotLookedUpWhileItIsWatched(t *testing.T) {
	s := newSite(t, 1)
	api := watched(s)
	stop := follows(s.Driver)
	defer func() { stop() }()
	c := s.of(1, "u-1", "p1")
	api.send(c)
	s.has(t, c)
	defer s.Use(s.Grants()[0].ID, grant.Identity{UID: "p1", Namespace: "team"})()
	s.isShown(t)
	s.has(t, s.of(2, "u-1", "p1")) // for another pod
	stop()
	cluster := s.Client.(*fake.Clientset)
	cluster.ClearActions()
	if err := s.Driver.Reclaim(context.Background()); err != nil || len(cluster.Actions()) != 0 {
		t.Errorf("it asked %v (%v)", cluster.Actions(), err)
	}
}

// The role of an older version's manifests lets the driver get claims, but not watch them.
func TestAClaimThatCannotBeWatchedIsLookedUp(t *testing.T) {
	s := newSite(t, 1)
	var log bytes.Buffer
	s.Log = slog.New(slog.NewTextHandler(&log, nil))
	cluster := s.Client.(*fake.Clientset)
	forbidden := apierrors.NewForbidden(resourceapi.Resource("resourceclaims"), "claim-u-1",
		errors.New("it may not"))
	tries := make(chan struct{}, 100)
	cluster.PrependWatchReactor("resourceclaims", func(clienttesting.Action) (bool, watch.Interface, error) {
		tries <- struct{}{}
		return true, nil, forbidden
	})
	cluster.PrependReactor("get", "resourceclaims",
		func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, s.of(2, "u-1", "p1", "p2"), nil
		})
	stop := follows(s.Driver)
	s.has(t, s.of(1, "u-1", "p1"))
	s.becomes(t, "read", teams("p1", "p2")...)
	eventually(t, "it tries again", func() bool { return len(tries) > 1 })
	stop()
	if n := strings.Count(log.String(), "cannot watch the claim of a grant"); n != 1 {
		t.Errorf("it is logged %d times:\n%s", n, log.String())
	}
}

// Grants of a version without ties have none.
func TestGrantsOfAnOlderVersionAreTied(t *testing.T) {
	for name, c := range map[string]struct{ pods, want []string }{
		"its pods are there": {[]string{"p1"}, []string{"p1"}},
		"they are removed":   {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, 1)
			w, err := translate(s.of(1, "u-1"), pool, contentOf(t, s.Driver))
			if err != nil {
				t.Fatal(err)
			}
			g := s.Grant(w[0].ask)
			s.isFor(t, "as it was")
			end := s.Use(g.ID, grant.Identity{UID: "p9", Namespace: "other", Pod: "thief", Container: "main"})
			defer end()
			var log bytes.Buffer
			s.Log = slog.New(slog.NewTextHandler(&log, nil))
			api := watched(s)
			api.send(s.of(2, "u-1", c.pods...))
			stop := follows(s.Driver)
			s.becomes(t, "followed", teams(c.want...)...)
			stop()
			if n := strings.Count(log.String(), "none of its pods' uses a grant"); n != 1 ||
				!strings.Contains(log.String(), "namespace=other pod=thief uid=p9") {
				t.Errorf("the log names the thief %d times:\n%s", n, log.String())
			}
		})
	}
}

// contentOf returns the ledger as a driver reads it.
func contentOf(t *testing.T, d *Driver) nodeledger.Content {
	t.Helper()
	p, err := d.read()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// engine sets the engine in the node's configuration.
func engine(n *nodeledgertest.SimulatedNode, name string) {
	n.T.Helper()
	text, err := os.ReadFile(n.Config)
	if err != nil {
		n.T.Fatal(err)
	}
	if _, rest, found := strings.Cut(string(text), "\n# engine\n"); found {
		text = []byte(rest)
	}
	if err := os.WriteFile(n.Config, fmt.Appendf(nil, "engine = %q\n# engine\n%s", name, text),
		0o600); err != nil {
		n.T.Fatal(err)
	}
}

func TestWithoutTrustedAnnotationsClaimsAreNotTied(t *testing.T) {
	n := nodeledgertest.New(t, 1, 16*grant.GiB, "")
	engine(n, "podman")
	var log bytes.Buffer
	s := site{n, &Driver{Ledger: n.Ledger, Node: pool, Client: fake.NewClientset(),
		Log: slog.New(slog.NewTextHandler(&log, nil))}}
	s.has(t, s.of(1, "u-1", "p1"))
	s.has(t, s.of(2, "u-1", "p1", "p2"))
	if _, err := s.follower().retie(); err != nil {
		t.Error(err)
	}
	s.isFor(t, "under podman")
	if n := strings.Count(log.String(), "the engine of this node does not prove which pod"); n != 1 ||
		!strings.Contains(log.String(), "engine=podman") {
		t.Errorf("it is logged %d times:\n%s", n, log.String())
	}

	// Existing ties stay when the configuration changes.
	engine(n, "containerd")
	s.has(t, s.of(3, "u-1", "p1"))
	s.isFor(t, "under containerd", teams("p1")...)
	engine(n, "none")
	s.has(t, s.of(4, "u-1", "p1", "p2"))
	s.isFor(t, "under none", teams("p1")...)
}
