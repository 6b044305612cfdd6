import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.stream.Collectors;

/**
 * Downloads the jars of a lock file into the local Maven repository, and writes their classpath.
 * Started from source by cljw: java Bootstrap.java LOCK-FILE CLASSPATH-FILE.
 * A line of the lock file is the sha256 sum of a jar, two blanks, its path in a Maven repository.
 */
class Bootstrap {
  /** The only place in this repository that names a package registry. */
  static final String CENTRAL = "https://repo1.maven.org/maven2";

  static final int ATTEMPTS = 3;

  record Jar(String sha256, String path, Path file) {}

  final String base;
  final HttpClient client =
      HttpClient.newBuilder()
          .followRedirects(HttpClient.Redirect.NORMAL)
          .connectTimeout(Duration.ofSeconds(20))
          .build();

  Bootstrap(String base) {
    this.base = base.replaceAll("/+$", "");
  }

  public static void main(String[] args) throws Exception {
    try {
      Path repository = Path.of(System.getProperty("user.home"), ".m2", "repository");
      List<Jar> jars = readLock(Path.of(args[0]), repository);
      new Bootstrap(base()).fetchMissing(jars);
      writeClasspath(jars, Path.of(args[1]));
    } catch (IOException e) {
      System.err.println("cljw: " + e.getMessage());
      System.exit(1);
    }
  }

  static String base() {
    String url = System.getenv("MAVEN_CENTRAL_URL");
    return url == null || url.isBlank() ? CENTRAL : url;
  }

  static List<Jar> readLock(Path lock, Path repository) throws IOException {
    return Files.readAllLines(lock).stream()
        .filter(line -> !line.isBlank() && !line.startsWith("#"))
        .map(line -> line.split(" +"))
        .map(parts -> new Jar(parts[0], parts[1], repository.resolve(parts[1])))
        .toList();
  }

  static void writeClasspath(List<Jar> jars, Path target) throws IOException {
    String classpath =
        jars.stream()
            .map(jar -> jar.file.toString())
            .collect(Collectors.joining(System.getProperty("path.separator")));
    Path parent = target.toAbsolutePath().getParent();
    Files.createDirectories(parent);
    Path part = Files.createTempFile(parent, "tools", ".part");
    Files.writeString(part, classpath + "\n");
    Files.move(part, target, StandardCopyOption.REPLACE_EXISTING);
  }

  void fetchMissing(List<Jar> jars) throws IOException, InterruptedException {
    List<Jar> missing = new ArrayList<>();
    for (Jar jar : jars) {
      if (!isIntact(jar)) missing.add(jar);
    }
    if (missing.isEmpty()) return;
    System.err.println("cljw: downloading " + missing.size() + " jars of tools.deps from " + base);
    fetchAll(missing);
  }

  void fetchAll(List<Jar> jars) throws IOException, InterruptedException {
    try (var executor = Executors.newVirtualThreadPerTaskExecutor()) {
      List<Future<?>> fetches = new ArrayList<>();
      for (Jar jar : jars) {
        fetches.add(executor.submit(() -> fetch(jar)));
      }
      awaitAll(fetches, executor::shutdownNow);
    }
  }

  static void awaitAll(List<Future<?>> fetches, Runnable cancel)
      throws IOException, InterruptedException {
    for (Future<?> fetch : fetches) {
      try {
        fetch.get();
      } catch (ExecutionException e) {
        cancel.run();
        throw new IOException(e.getCause().getMessage(), e.getCause());
      }
    }
  }

  Void fetch(Jar jar) throws Exception {
    for (int attempt = 1; ; attempt++) {
      try {
        return download(jar);
      } catch (IOException e) {
        if (attempt == ATTEMPTS) throw explain(jar, e);
        Thread.sleep(500L * attempt);
      }
    }
  }

  Void download(Jar jar) throws Exception {
    var request =
        HttpRequest.newBuilder(URI.create(base + "/" + jar.path))
            .timeout(Duration.ofSeconds(120))
            .build();
    var response = client.send(request, BodyHandlers.ofByteArray());
    if (response.statusCode() != 200) throw new IOException("status " + response.statusCode());
    String sum = sha256(response.body());
    if (!sum.equals(jar.sha256)) throw new IOException("its sha256 sum is " + sum + ", not that of tools-deps.lock");
    store(jar.file, response.body());
    return null;
  }

  /** Moved into place as a whole: a killed download leaves no half jar behind. */
  static void store(Path file, byte[] content) throws IOException {
    Files.createDirectories(file.getParent());
    Path part = Files.createTempFile(file.getParent(), file.getFileName().toString(), ".part");
    Files.write(part, content);
    Files.move(part, file, StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING);
  }

  IOException explain(Jar jar, IOException e) {
    return new IOException(
        "could not download " + base + "/" + jar.path + " (" + reason(e) + ").\n"
            + "  The first start needs the network, later ones do not. Behind a proxy, set it with\n"
            + "  JAVA_TOOL_OPTIONS=-Dhttps.proxyHost=... -Dhttps.proxyPort=...; a mirror is named by MAVEN_CENTRAL_URL.",
        e);
  }

  static String reason(Throwable e) {
    return e.getMessage() == null ? e.getClass().getSimpleName() : e.getMessage();
  }

  static boolean isIntact(Jar jar) throws IOException {
    return Files.isRegularFile(jar.file) && sha256(Files.readAllBytes(jar.file)).equals(jar.sha256);
  }

  static String sha256(byte[] content) {
    try {
      return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(content));
    } catch (java.security.NoSuchAlgorithmException e) {
      throw new IllegalStateException(e);
    }
  }
}
