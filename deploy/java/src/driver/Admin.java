package driver;

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** What a test asks of the cluster itself, one admin client per name server address. */
final class Admin {
    private static final long ROUTE_WITHIN_MS = 10_000;

    private final Map<String, DefaultMQAdminExt> started = new HashMap<>();

    /** Creates the topic on every master and answers once the name server routes it. */
    Map<String, Object> createTopic(Request request) throws Exception {
        createTopic(of(request.text("namesrv")), request.text("topic"), (int) request.number("queues", 4));
        return Driver.ok();
    }

    static void createTopic(DefaultMQAdminExt admin, String topic, int queues) throws Exception {
        TopicConfig config = new TopicConfig(topic);
        config.setReadQueueNums(queues);
        config.setWriteQueueNums(queues);
        for (var broker : admin.examineBrokerClusterInfo().getBrokerAddrTable().values()) {
            String master = broker.getBrokerAddrs().get(0L);
            if (master != null) {
                admin.createAndUpdateTopicConfig(master, config);
            }
        }
        awaitRoute(admin, topic);
    }

    private static void awaitRoute(DefaultMQAdminExt admin, String topic) throws Exception {
        long deadline = System.nanoTime() + ROUTE_WITHIN_MS * 1_000_000;
        while (true) {
            try {
                admin.examineTopicRouteInfo(topic);
                return;
            } catch (Exception notYet) {
                if (System.nanoTime() > deadline) {
                    throw notYet;
                }
                Thread.sleep(20);
            }
        }
    }

    Map<String, Object> maxOffset(Request request) throws Exception {
        MessageQueue queue = new MessageQueue(request.text("topic"), request.text("broker"), (int) request.number("queue"));
        Map<String, Object> reply = Driver.ok();
        reply.put("offset", of(request.text("namesrv")).maxOffset(queue));
        return reply;
    }

    /** Every message that the broker's index has under this unique key, not just the first as the console tools show. */
    Map<String, Object> queryByUniqueKey(Request request) throws Exception {
        DefaultMQAdminExt admin = of(request.text("namesrv"));
        // Which class has it, and since which version, varies: 4.9.7 has it, 4.3.0 has not.
        Method query = admin.getClass().getMethod("queryMessageByUniqKey", String.class, String.class, int.class, long.class,
            long.class);
        List<Object> found = new ArrayList<>();
        try {
            QueryResult result = (QueryResult) query.invoke(admin, request.text("topic"), request.text("key"), 32,
                request.number("fromMs", 0), request.number("toMs", Long.MAX_VALUE));
            for (MessageExt message : result.getMessageList()) {
                found.add(Messages.describe(message));
            }
        } catch (java.lang.reflect.InvocationTargetException thrown) {
            if (!String.valueOf(thrown.getCause()).contains("no message")) {
                throw (Exception) thrown.getCause();
            }
        }
        Map<String, Object> reply = Driver.ok();
        reply.put("messages", found);
        return reply;
    }

    Map<String, Object> viewMessage(Request request) throws Exception {
        Map<String, Object> reply = Driver.ok();
        reply.put("message", Messages.describe(of(request.text("namesrv")).viewMessage(request.text("topic"), request.text("id"))));
        return reply;
    }

    /** The console tool's own entry, as its script calls it. Answers what it printed. */
    Map<String, Object> mqadmin(Request request) throws Exception {
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        PrintStream before = System.out;
        System.setOut(new PrintStream(printed, true, "UTF-8"));
        try {
            MQAdminStartup.main0(request.text("line").split(" "), null);
        } finally {
            System.setOut(before);
        }
        Map<String, Object> reply = Driver.ok();
        reply.put("printed", printed.toString("UTF-8"));
        return reply;
    }

    DefaultMQAdminExt of(String namesrv) throws Exception {
        DefaultMQAdminExt admin = started.get(namesrv);
        if (admin == null) {
            admin = new DefaultMQAdminExt();
            admin.setNamesrvAddr(namesrv);
            admin.setInstanceName("admin-" + System.nanoTime());
            admin.setVipChannelEnabled(false);
            admin.start();
            started.put(namesrv, admin);
        }
        return admin;
    }
}
