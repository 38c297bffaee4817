package request

import "github.com/gpuledger/gpuledger/internal/grant"

type identityKeys struct{ uid, namespace, pod, container, kind string }

// keysOf returns the annotations that an engine itself writes last, after all that a pod brings.
// Any other key can be forged on that engine. Other engines prove none (grant.Engine.ProvesPods).
func keysOf(engine grant.Engine) (keys identityKeys, trusted bool) {
	switch engine {
	case grant.Containerd:
		return identityKeys{
			uid: "io.kubernetes.cri.sandbox-uid", namespace: "io.kubernetes.cri.sandbox-namespace",
			pod: "io.kubernetes.cri.sandbox-name", container: "io.kubernetes.cri.container-name",
			kind: "io.kubernetes.cri.container-type",
		}, true
	case grant.CRIO:
		return identityKeys{
			uid: "io.kubernetes.pod.uid", namespace: "io.kubernetes.pod.namespace",
			pod: "io.kubernetes.pod.name", container: "io.kubernetes.container.name",
			kind: "io.kubernetes.cri-o.ContainerType",
		}, true
	}
	return identityKeys{}, false
}

// identity reads a container's place in a pod, if its engine proves it, and whether it is a
// pod's sandbox.
func identity(annotations map[string]string, engine grant.Engine) (id grant.Identity, sandbox bool) {
	keys, trusted := keysOf(engine)
	if !trusted {
		return grant.Identity{}, false
	}
	if annotations[keys.kind] == "sandbox" {
		return grant.Identity{}, true
	}
	return grant.Identity{UID: annotations[keys.uid], Namespace: annotations[keys.namespace],
		Pod: annotations[keys.pod], Container: annotations[keys.container]}, false
}

// PodOf returns a container's place in a pod, if its engine proves it. It looks at nothing that the
// spec names.
func PodOf(s Spec, engine grant.Engine) grant.Identity {
	id, _ := identity(s.Annotations, engine)
	return id
}

// WriteIdentity writes an identity that the caller knows to be true where Find looks for it, over
// any other one. For an engine that proves none it writes nothing.
func WriteIdentity(annotations map[string]string, engine grant.Engine, id grant.Identity) {
	keys, trusted := keysOf(engine)
	if !trusted {
		return
	}
	for key, value := range map[string]string{keys.uid: id.UID, keys.namespace: id.Namespace,
		keys.pod: id.Pod, keys.container: id.Container, keys.kind: "container"} {
		annotations[key] = value
	}
}

// The prefix of our own annotations, and the name of the reference among them.
const (
	prefix   = "gpuledger.dev/"
	grantKey = prefix + "grant"
)

// keyed reads an annotation for this container: KEY.<container>, and KEY alone if no pod is known.
// A pod's engine copies its annotations to every container, so there KEY alone does not say which
// container it is for: names reports whether it does.
func (f *containerFacts) keyed(key string) (source, value string, names, found bool) {
	if c := f.caller.Container.Pod.Container; c != "" {
		if value, found := f.spec.Annotations[key+"."+c]; found {
			return "annotation:" + key + "." + c, value, true, true
		}
		value, found := f.spec.Annotations[key]
		return "annotation:" + key, value, false, found
	}
	value, found = f.spec.Annotations[key]
	return "annotation:" + key, value, true, found
}
