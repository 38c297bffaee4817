package verdict

// Identity is what the engine proves of a container (docs/grants.md, "Which engine calls").
type Identity struct {
	Proven                         bool
	UID, Namespace, Pod, Container string
	Sandbox                        bool
}

// keys are the annotations that an engine writes last, so that no pod can forge them (a pod's own
// come before them). Podman and Docker prove nothing.
var keys = map[string]struct{ kind, uid, namespace, pod, container string }{
	"containerd": {"io.kubernetes.cri.container-type", "io.kubernetes.cri.sandbox-uid",
		"io.kubernetes.cri.sandbox-namespace", "io.kubernetes.cri.sandbox-name",
		"io.kubernetes.cri.container-name"},
	"cri-o": {"io.kubernetes.cri-o.ContainerType", "io.kubernetes.pod.uid", "io.kubernetes.pod.namespace",
		"io.kubernetes.pod.name", "io.kubernetes.container.name"},
}

func identify(engine string, annotations map[string]string) Identity {
	k, known := keys[engine]
	if !known {
		return Identity{}
	}
	id := Identity{UID: annotations[k.uid], Namespace: annotations[k.namespace], Pod: annotations[k.pod],
		Sandbox: annotations[k.kind] == "sandbox"}
	id.Proven = id.Sandbox || id.UID+id.Namespace+id.Pod+annotations[k.container] != ""
	if !id.Sandbox {
		id.Container = annotations[k.container]
	}
	return id
}

// owner is the owner of the grant that belongs to the container; "" where the engine does not say
// which pod it is of (containerd before 1.6.11).
func (id Identity) owner() string {
	if id.UID == "" || id.Container == "" {
		return ""
	}
	return "pod:" + id.UID + "/" + id.Container
}

// inTies says whether a tied reference is for the container (docs/grants.md, "Tied references").
func (id Identity) inTies(ties []string) bool {
	if len(ties) == 0 {
		return true
	}
	pods, inPods, namespaces, inNamespaces := false, false, false, false
	for _, tie := range ties {
		switch {
		case len(tie) > 4 && tie[:4] == "pod:":
			pods, inPods = true, inPods || tie == "pod:"+id.UID
		default:
			namespaces, inNamespaces = true, inNamespaces || tie == "namespace:"+id.Namespace
		}
	}
	return id.Proven && (!pods || inPods && id.UID != "") && (!namespaces || inNamespaces)
}
