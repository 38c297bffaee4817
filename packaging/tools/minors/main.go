// Command minors reads manifests with the types of one minor version of Kubernetes, that of the
// k8s.io/api that it is built with: each kind and each field must be in that version's API. It
// prints how many objects there are. packaging/minors.sh builds one for each version that the chart
// allows.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"

	admissionregistration "k8s.io/api/admissionregistration/v1"
	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	node "k8s.io/api/node/v1"
	rbac "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// newer adds the groups that only some of the versions have.
var newer []func(*runtime.Scheme) error

func main() {
	scheme, bad, n := runtime.NewScheme(), 0, 0
	for _, add := range append(newer, admissionregistration.AddToScheme, apps.AddToScheme, batch.AddToScheme,
		core.AddToScheme, networking.AddToScheme, node.AddToScheme, rbac.AddToScheme) {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	for r := yaml.NewYAMLReader(bufio.NewReader(os.Stdin)); ; {
		document, err := r.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			panic(err)
		}
		if empty(document) {
			continue
		}
		n++
		if _, _, err := decoder.Decode(document, nil, nil); err != nil {
			bad++
			fmt.Println(err)
		}
	}
	fmt.Println(n, "objects,", bad, "bad")
	if bad > 0 || n == 0 {
		os.Exit(1)
	}
}

// empty reports whether a document has no value: Helm leaves comments where it renders nothing.
func empty(document []byte) bool {
	var fields map[string]any
	return yaml.Unmarshal(document, &fields) == nil && len(fields) == 0
}
