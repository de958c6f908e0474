// Package images holds the definitions of the project's own images, one file each.
//
// What. Text: which packages of Debian and of Alpine make an image, and what it says about running it.
//
// Place in the flow. pkg/image/build reads them, and makes images and Dockerfiles of them. Nothing of ours is imported.
//
// Lifecycle. They are part of the executable; nothing is read from the disk.
//
// Concurrency. Files never change.
//
// Limits. The format is described in pkg/image/build, at Definition.
package images

import "embed"

// Files are the definitions, NAME.yaml.
//
//go:embed *.yaml
var Files embed.FS
