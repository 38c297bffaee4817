// Package browser opens a document in a headless Chromium, for tests of what the daemon shows and
// for the pictures in docs.
package browser

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Names under which the browser is looked for.
var names = []string{"chromium", "chromium-browser", "google-chrome"}

// Find gives the browser's path; "" where there is none.
func Find() string {
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}

// Look is how a document is looked at.
type Look struct {
	Dark          bool
	Width, Height int
}

// DOM gives the document as it stands once its scripts have run.
func DOM(document []byte, l Look) (string, error) {
	out, err := open(document, l, "--dump-dom")
	return string(out), err
}

// Picture gives a picture of the document, as PNG.
func Picture(document []byte, l Look) ([]byte, error) {
	dir, err := os.MkdirTemp("", "picture-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "picture.png")
	if _, err := open(document, l, "--hide-scrollbars", "--screenshot="+path); err != nil {
		return nil, err
	}
	return os.ReadFile(path)
}

// patience bounds how long a browser that hangs is waited for.
const patience = 2 * time.Minute

// quiet keeps the browser from everything that is not the document: no network, no first steps, no
// other process' profile.
var quiet = []string{"--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
	"--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
	"--disable-component-update", "--disable-sync", "--disable-default-apps", "--disable-extensions",
	"--no-proxy-server", "--host-resolver-rules=MAP * ~NOTFOUND"}

// open starts it with a profile of its own, which ends with it.
func open(document []byte, l Look, more ...string) ([]byte, error) {
	dir, err := os.MkdirTemp("", "browser-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	page := filepath.Join(dir, "page.html")
	if err := os.WriteFile(page, document, 0o600); err != nil {
		return nil, err
	}
	// light (third_party/blink/public/mojom/css/preferred_color_scheme.mojom)
	scheme := "preferredColorScheme=1"
	if l.Dark {
		scheme = "preferredColorScheme=0"
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	args := append(append([]string{}, quiet...), "--user-data-dir="+filepath.Join(dir, "profile"),
		"--blink-settings="+scheme, fmt.Sprintf("--window-size=%d,%d", l.Width, l.Height))
	cmd := exec.CommandContext(ctx, Find(), append(append(args, more...), "file://"+page)...)
	cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_CONFIG_HOME="+dir, "XDG_CACHE_HOME="+dir,
		"DBUS_SESSION_BUS_ADDRESS=disabled:")
	cmd.WaitDelay = time.Second
	var out, complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaints
	if err := cmd.Run(); err != nil {
		lines := strings.Split(strings.TrimSpace(complaints.String()), "\n")
		return nil, fmt.Errorf("cannot open the document in %s: %w: %s", cmd.Path, err, lines[len(lines)-1])
	}
	return out.Bytes(), nil
}
