# docker build -t labelsieve .
# Without TORCH_INDEX, torch comes from pip's default index: on x86-64 the build with CUDA, which also runs on a CPU.
# docker build -t labelsieve --build-arg TORCH_INDEX=URL .   another build, such as the much smaller one for CPUs
# docker run --rm -v "$PWD:/data" labelsieve train photos/ --out runs/mine
FROM python:3.12-slim

ARG TORCH_INDEX=""
ARG EXTRAS="photos,text,plots,parquet,jpeg,onnx"

WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY docs/methods docs/methods
COPY labelsieve labelsieve
RUN pip install --no-cache-dir ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} --constraint constraints.txt torch \
    && pip install --no-cache-dir --constraint constraints.txt ".[$EXTRAS]"

RUN useradd --create-home --uid 1000 sieve && install --directory --owner sieve /data
USER 1000
WORKDIR /data
ENTRYPOINT ["labelsieve"]
CMD ["--help"]
