package configure

import (
	"slices"
	"strings"

	"github.com/gpuledger/gpuledger/internal/configfile"
)

// setCDIDirs adds the standard directories of CDI to a list that a file sets without them. An engine's
// own default has them.
func setCDIDirs(set *configfile.Setter, tree map[string]any, key string, path []string) {
	dirs, found := configfile.Texts(tree, key)
	if missing := missingCDI(dirs); found && len(missing) > 0 {
		set.To(configfile.Union(dirs, missing...), path...)
	}
}

func missingCDI(dirs []string) []string {
	missing := []string{}
	for _, dir := range []string{"/etc/cdi", "/var/run/cdi"} {
		if !slices.Contains(dirs, dir) && !slices.Contains(dirs, strings.TrimPrefix(dir, "/var")) {
			missing = append(missing, dir)
		}
	}
	return missing
}
