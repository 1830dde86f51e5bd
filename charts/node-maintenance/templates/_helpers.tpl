{{- /* The image of all containers of the product. */ -}}
{{- define "node-maintenance.image" -}}
{{- $repository := required "image.repository is required: set it to the image that you pushed, such as registry.example/nodemaintenance" .Values.image.repository -}}
{{- printf "%s:%s" $repository (.Values.image.tag | default (printf "v%s" .Chart.AppVersion)) -}}
{{- end -}}

{{- /* The field of a ServiceAccount with the Secrets for pulling the image. */ -}}
{{- define "node-maintenance.imagePullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{- /* The limits and restrictions of a container that runs one command, in a pod with the volume `tmp`. */ -}}
{{- define "node-maintenance.restrictions" -}}
resources:
  requests: {cpu: 20m, memory: 96Mi}
  limits: {cpu: "1", memory: 256Mi}
securityContext:
  runAsNonRoot: true
  readOnlyRootFilesystem: true
  allowPrivilegeEscalation: false
  capabilities: {drop: [ALL]}
  seccompProfile: {type: RuntimeDefault}
volumeMounts:
  - {name: tmp, mountPath: /tmp}
{{- end -}}

{{- /*
Whether this release creates and keeps a namespace: if it does not exist yet, or if this release created it. Other
products share these namespaces. Arguments: the root context and the namespace's name.
*/ -}}
{{- define "node-maintenance.mayOwnNamespace" -}}
{{- $found := lookup "v1" "Namespace" "" (index . 1) -}}
{{- if or (not $found) (include "node-maintenance.isOwned" (list (index . 0) $found)) -}}true{{- end -}}
{{- end -}}

{{- /* Whether Helm created an object for this release. Arguments: the root context and the object. */ -}}
{{- define "node-maintenance.isOwned" -}}
{{- $annotations := (index . 1).metadata.annotations | default dict -}}
{{- $release := (index . 0).Release -}}
{{- if and (eq (get $annotations "meta.helm.sh/release-name") $release.Name) (eq (get $annotations "meta.helm.sh/release-namespace") $release.Namespace) -}}true{{- end -}}
{{- end -}}

{{- /* Rejects values that the manifests do not support together. */ -}}
{{- define "node-maintenance.validate" -}}
{{- if ne .Release.Namespace "node-maintenance" -}}
{{- fail (printf "namespace %q is not supported, because the functions and kubectl maintenance use the namespace node-maintenance: add --namespace node-maintenance --create-namespace" .Release.Namespace) -}}
{{- end -}}
{{- if and .Values.scaleToZero (ne .Values.functions "services") -}}
{{- fail (printf "scaleToZero is not supported with functions=%s: set functions=services or scaleToZero=false" .Values.functions) -}}
{{- end -}}
{{- if and (eq .Values.journal.storage "volume") (eq .Values.functions "compact") -}}
{{- fail "journal.storage=volume is not supported with functions=compact, whose pods of two revisions would share the volume: set journal.storage=postgresql, or another value of functions" -}}
{{- end -}}
{{- if and (eq .Values.brokerAuthentication "senders") (eq .Values.delivery "rabbitmq") -}}
{{- fail "brokerAuthentication=senders is not supported with delivery=rabbitmq, whose Broker does not support EventPolicy: set brokerAuthentication=tokens or none" -}}
{{- end -}}
{{- if and .Values.components.admission (eq .Values.certificates "none") -}}
{{- fail "components.admission requires a certificate: set certificates=function or certManager, or components.admission=false" -}}
{{- end -}}
{{- include "node-maintenance.validateBroker" . -}}
{{- end -}}

{{- /* Rejects another class for an existing Broker: its class is immutable, so Eventing would reject it in mid-upgrade. */ -}}
{{- define "node-maintenance.validateBroker" -}}
{{- if .Capabilities.APIVersions.Has "eventing.knative.dev/v1/Broker" -}}
{{- $broker := lookup "eventing.knative.dev/v1" "Broker" .Release.Namespace "default" -}}
{{- if $broker -}}
{{- $class := get ($broker.metadata.annotations | default dict) "eventing.knative.dev/broker.class" -}}
{{- $wanted := get (dict "inMemory" "MTChannelBasedBroker" "rabbitmq" "RabbitMQBroker" "kafka" "Kafka") .Values.delivery -}}
{{- if ne $class $wanted -}}
{{- fail (printf "Broker %s/default has the class %s, not %s: delete it first: kubectl delete trigger,broker --all -n %s" .Release.Namespace $class $wanted .Release.Namespace) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
