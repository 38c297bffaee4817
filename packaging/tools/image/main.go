// Command image makes OCI images and artifacts out of files, without a base, a daemon or a network.
// Two runs give the same bytes.
//
//	image pack    one image of one layer, of a directory, as `docker load` reads it
//	image join    one image for several architectures, of such images, as an archive of an OCI layout
//	image chart   a Helm chart as an OCI artifact, as an archive of an OCI layout
//
// `skopeo copy oci-archive:FILE`, `podman load` and `ctr image import` read an archive of a layout.
package main

import (
	"flag"
	"fmt"
	"os"
	"time"
)

func main() {
	commands := map[string]func(output) error{"pack": pack, "join": join, "chart": chart}
	var command func(output) error
	if len(os.Args) > 1 {
		command = commands[os.Args[1]]
	}
	if command == nil {
		fmt.Fprintln(os.Stderr, "usage: image pack|join|chart -name NAME -out FILE [OPTIONS] [FILE...]")
		os.Exit(2)
	}
	flags := flag.NewFlagSet(os.Args[1], flag.ExitOnError)
	var to output
	flags.StringVar(&to.name, "name", "", "the image's name, with a tag")
	flags.StringVar(&to.file, "out", "", "the archive")
	flags.StringVar(&to.root, "root", "", "pack: the image's files")
	flags.StringVar(&to.arch, "arch", "", "pack: its architecture, in Go's words")
	flags.StringVar(&to.entry, "entrypoint", "", "pack: its program")
	seconds := flags.Int64("time", 0, "when it was made, in seconds since 1970")
	_ = flags.Parse(os.Args[2:])
	to.time, to.inputs = time.Unix(*seconds, 0).UTC(), flags.Args()
	if err := command(to); err != nil {
		fmt.Fprintf(os.Stderr, "image %s: %v\n", os.Args[1], err)
		os.Exit(1)
	}
}

// output is what to make, and of what.
type output struct {
	name, file        string
	root, arch, entry string
	time              time.Time
	inputs            []string
}
