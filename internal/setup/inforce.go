package setup

import "fmt"

// handler is the name of gpuledger's runtime handler in every engine.
const handler = "gpuledger"

// inForce returns an error if an engine that serves a kubelet here runs without the handler
// gpuledger, or with another default if that was asked for. The files that configure edited are no
// proof: containerd may have been started with another one, or a distribution may read its template
// under another name. Only containerd says what it runs with; of another engine nothing is known
// here.
func inForce(engine string, asDefault bool) error {
	var failed error
	for _, socket := range serving(engine) {
		r, err := runsWith(socket)
		_, has := r.Containerd.Handlers[handler]
		switch {
		case err != nil:
		case has && (!asDefault || r.Containerd.Default == handler):
			return nil // another one that serves here may be of no kubelet
		case has:
			failed = fmt.Errorf("%s (%s) runs with the default handler %q", engine, socket,
				r.Containerd.Default)
		default:
			failed = fmt.Errorf("%s (%s) runs without the handler %s", engine, socket, handler)
		}
	}
	if failed == nil {
		return nil
	}
	return fmt.Errorf("%w: its containers go around gpuledger. If it was not restarted since, restart "+
		"it; `gpuledger configure %s --dry-run` says on the node if it reads another file than the "+
		"configured one", failed, engine)
}
