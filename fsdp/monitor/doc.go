// Package monitor draws what a person watches while a model trains: a progress line that is updated
// in place, lines of text above it, and the loss curve.
//
// Everything that has a look is a pure function from numbers and a width to a string:
// [Progress.Line], [Progress.Log] and [Curve.String]. [Screen] decides when and where they are
// written, and [Filter] makes text from a model safe to print.
package monitor
