# One image for every role:
#
#   docker build -t strake .
#   docker run --rm strake --help
#
# A node that mounts needs the device and the right to mount:
#
#   docker run --device /dev/fuse --cap-add SYS_ADMIN -v strake:/data strake --role=all --data=/data --mount=/mnt

FROM node:22-bookworm-slim AS bundle
WORKDIR /src/assets
COPY assets/package.json assets/package-lock.json ./
RUN npm ci --no-audit --no-fund
COPY assets/ ./
RUN npm run build

FROM golang:1.26-bookworm AS build
ARG VERSION=devel
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
COPY --from=bundle /src/assets/dist/ assets/dist/
RUN CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=${VERSION}" -o /out/usr/bin/strake . \
	&& mkdir -p /out/tmp /out/mnt /out/data /out/var/log /out/usr/sbin \
	&& chmod 1777 /out/tmp \
	&& ln -s strake /out/usr/bin/lfs && ln -s strake /out/usr/bin/lctl && ln -s ../bin/strake /out/usr/sbin/mount.strake

FROM scratch
COPY --from=build /out/ /
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
ENV PATH=/usr/bin:/usr/sbin
EXPOSE 9880 9881
# SIGTERM unmounts, flushes and leaves within 10 s; give it that (docker stop -t 15).
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/bin/strake"]
