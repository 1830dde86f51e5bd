// Package ext declares the types that Traefik's configuration extends; its module's zip file lacks this nested module.
package ext

// HTTP has no additional fields.
type HTTP struct{}

// Router has no additional fields.
type Router struct{}
