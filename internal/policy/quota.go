package policy

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// validQuotas checks what users may have, and where they ask.
func validQuotas(p grant.Policy) error {
	if s := p.Users.Socket; s != "" {
		// users reach what is beside their socket, and the run directory is root's alone
		below := strings.HasPrefix(filepath.Clean(s)+"/", filepath.Clean(p.RunDir)+"/")
		if !filepath.IsAbs(s) || below {
			return fmt.Errorf("users.socket: want an absolute path outside of run_dir, not %q", s)
		}
	}
	for i, q := range p.Quotas {
		key := fmt.Sprintf("quota[%d]", i)
		switch {
		case (q.User == "") == (q.Group == ""):
			return fmt.Errorf("%s: want user or group", key)
		case q.GPUs < 0:
			return fmt.Errorf("%s.gpus: want a number, not %d", key, q.GPUs)
		case q.Grants < 0:
			return fmt.Errorf("%s.grants: want a number, not %d", key, q.Grants)
		}
		for name, text := range map[string]string{"ttl": q.TTL, "idle": q.Idle} {
			if d, err := grant.ParseDuration(text); text != "" && (err != nil || d <= 0) {
				return fmt.Errorf("%s.%s: want a duration above 0, as 12h or 7d, not %q", key, name, text)
			}
		}
	}
	return nil
}
